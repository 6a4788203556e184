"""The library of the tests.

    limits.py      how patient the tests are; polling with a bound
    wire.py        a connection that speaks RESP2 and RESP3 and shows the bytes
    server.py      a server with the module, on a free port, in a directory of its own
    cluster.py     two nodes of a cluster, and slots that move between them
    independent.py servers that know nothing of each other, and Redlock over them
    late_client.py a client that is stopped for too long
    preloaded.py   libraries that are preloaded into a server
    wall_clock.py  a server whose wall clock the test sets
    waiting.py     a request that waits in line while the test continues
    replies.py     LOCK.INFO and INFO redislock as dictionaries
    samples.py     a lock of each kind; walk.py: all that can happen to them, step by step
    payload.py     what DUMP gives, taken apart and sealed again
    native_lock.py redis-py's Lock, on LOCK.* commands
    contention.py  clients that contend for a few exclusive locks
    mixture.py     clients that use locks of all kinds; corners.py: where it is known what must follow
    quiet.py       what a server shows when they are done
    roamers.py     clients that ask any server of a group
    checker/       whether locks can have done what any of these saw
    proxy.py       a network between servers that can be cut, stalled and restored
    group.py       a primary and two replicas behind such a network
    sentinel.py    sentinels that watch a group
    shards.py      a cluster of three primaries with a replica each
    scene.py       what clients have and wait for while roles change
    transcript.py  the transcripts of the documentation, run
    console.py     a machine on which the steps of docs/operations are run
"""
