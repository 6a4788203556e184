"""The benchmark suite: what a lock costs here and elsewhere, side by side. See docs/internals/benchmarks.md."""
