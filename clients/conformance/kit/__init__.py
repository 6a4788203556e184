"""The conformance kit: checks that a client library of redislock does what a client must do.

    __main__.py  runs cases side by side, each in a process of its own, and prints their verdicts
    adapter.py   talks with an adapter (PROTOCOL.md)
    proxy.py     a network that misbehaves, and remembers the commands that passed; resp.py: their frames
    stage.py     what a case has: servers, proxies, adapters; and what it must leave behind: nothing
    cases/       the cases, by the nine points of docs/internals/clients-and-kit.md
    selftest.py  the reference adapter passes, and breaking any of its points fails the case meant for it

It starts servers, sentinels and clusters with the harness of tests/python.
"""
