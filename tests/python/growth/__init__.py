"""The cost of everything with ever more of everything: whether it grows, and the length of a turn of the event loop.

    fit.py      exponents, bounds and verdicts: pure functions
    rows.py     what a row is: a command beside many things, or an event of many things
    beside.py   the commands, beside what can be many
    stores.py   events of what is stored: flushes, deletions, copies, files
    ends.py     events of what ends: leases, places, connections, roles
    crowds.py   what takes connections: waiting clients, pending confirmations, replicas
    stage.py    a server with a given number of something
    meter.py    the turns of its event loop, by turns.c
    measure.py  measures one row at one size
    run.py      the command: measures, judges, writes
    report.py   the table; plot.py: the plot; publish.py: puts both into the documentation

Costs of commands are instructions, counted by callgrind as `scripts/bench guard` does; costs of events are processor
time of the server's main thread.

    PYTHONPATH=tests/python:benches python -m growth --only HELDBY
"""
