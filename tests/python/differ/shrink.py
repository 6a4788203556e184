"""Looks for fewer steps that show the same fault."""

import time


def kind_of(faults):
    """The question that found it: the first word."""
    return faults[0].split(":")[0]


def shrunk(steps, shows, seconds):
    """Fewer of these steps for which `shows` is still true; gives up after `seconds` seconds.

    The steps after the fault go first. Then halves are left out, quarters, and so on to single steps.
    """
    deadline = time.monotonic() + seconds
    size = max(1, len(steps) // 2)
    while time.monotonic() < deadline:
        was_shorter = False
        start = 0
        while start < len(steps) and time.monotonic() < deadline:
            fewer = steps[:start] + steps[start + size :]
            if fewer and shows(fewer):
                steps, was_shorter = fewer, True
            else:
                start += size
        if size == 1 and not was_shorter:
            break
        size = max(1, size // 2)
    return steps
