"""Mutation testing of the core: every small change of it must be noticed by a test (docs/internals/mutants.md)."""
