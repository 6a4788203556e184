"""One file a scenario; each has `run(bench) -> list[Figure]`."""
