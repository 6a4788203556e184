"""Random scripts on a primary, its replica and the replica's replica: checks that all agree, and that no client waits
for a free lock.

    run.py      the command: rounds from a seed, and what it tells of a fault
    script.py   which steps there are, and how a round's are drawn from its seed
    play.py     plays the steps: several connections, one step at a time
    group.py    the servers: a chain of three, changes of roles, and servers that load the primary's files
    look.py     asks a server for all that it shows of its locks
    shrink.py   looks for fewer steps that show the same fault

A round begins with empty servers. It is some tens of steps, and every few of them a rest: the servers come to be quiet,
and the checkers of views are asked (`checkers`). Chance alone draws the steps: no step of a script is made for a bug.

    PYTHONPATH=tests/python python -m differ --seconds 60 --seed 7
"""
