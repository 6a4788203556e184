"""Of all instances of a program, one leads, and does the work that only one may do.

When an instance resigns, dies or is cut off, the next candidate leads. The leader's token is higher than those of all
earlier leaders, so a resource that it writes to can tell them apart.
"""

import os
import queue
import sys
import uuid

import redis

import redislock

REDIS_URL = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379")
LIMIT_SECONDS = 30


def stand(locks, job, instance, events):
    """One instance stands for election."""
    return locks.leader(
        job,
        on_elected=lambda hold: events.put((instance, hold.token)),
        on_deposed=lambda reason: print(f"{instance} leads no more: {reason}"),
    )


def main():
    job, events = f"scheduler:{uuid.uuid4()}", queue.Queue()
    with redis.Redis.from_url(REDIS_URL) as server, redislock.Locks(server) as locks:
        locks.lock(job, wait=0).acquire().release()  # says at once if there are no locks
        with stand(locks, job, "the first", events):
            leader, token = events.get(timeout=LIMIT_SECONDS)
            print(f"{leader} leads with token {token}")
            second = stand(locks, job, "the second", events)
            second.start()
        # The first has resigned at the end of the block.
        leader, next_token = events.get(timeout=LIMIT_SECONDS)
        print(f"{leader} leads with token {next_token}")
        second.resign()
    return leader == "the second" and next_token > token and events.empty()


if __name__ == "__main__":
    print(f"writes to {REDIS_URL.rpartition('@')[2]}", file=sys.stderr)
    if redis.Redis.from_url(REDIS_URL).dbsize() and os.environ.get("REDISLOCK_EXAMPLES") != "anywhere":
        sys.exit("it has keys already: name an empty server by REDIS_URL, or set REDISLOCK_EXAMPLES=anywhere")
    sys.exit(0 if main() else 1)
