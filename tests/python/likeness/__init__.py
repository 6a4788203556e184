"""The simulated server held against real ones: one random script goes to both, and all that can be seen is the same.

    run.py      the command: rounds from a seed, and what it tells of a difference
    script.py   which steps there are, and how a round's are drawn from its seed
    real.py     plays the steps on a real server whose clocks stand still between them
    told.py     what came of a step, as both sides tell it, and in what they differ

The other side is src/sim/play. A real server's clocks are paused (tests/server/stopped_clock.c) and advance by
two milliseconds at a time, as the simulated ones do. So all is compared as it is, tokens, leases and waits included.

    PYTHONPATH=tests/python python -m likeness --seed 7 --rounds 40
"""
