"""Faults at random against real servers under load, and a judgement of the clients' observations.

    run.py          the command: topologies side by side, round after round
    faults.py       which faults there are, and how they are drawn from a seed
    injector.py     makes one fault after the other, and ends those whose time has passed
    acts.py         the effect of each fault on a server
    topology.py     servers under load: the parts that all topologies have in common
    single.py       one server that is killed and comes back
    replicated.py   a primary, two replicas, three sentinels
    clustered.py    three primaries with a replica each, and slots that move
    independents.py five servers that know nothing of each other, and Redlock
    judge.py        what may not have happened, and what must be so in the end
    report.py       what was done and found, added up and written down

    PYTHONPATH=tests/python python -m chaos --seconds 60 --seed 7
"""
