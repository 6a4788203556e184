"""The servers' own tests, with the module loaded and without (scripts/server-suites)."""
