"""Checks whether an example may write to the server: it must have the module, and no keys of other programs.

The server on the default port may be in use. So an example says where it writes, and refuses a database that already
has keys, unless REDISLOCK_EXAMPLES=anywhere.

    python playground.py    only checks
"""

import os
import sys

import redis

REDIS_URL = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379")


def may_write(url=REDIS_URL):
    """Ends the program unless the server may be used for examples."""
    where = url.rpartition("@")[2].removeprefix("redis://")
    with redis.from_url(url) as server:
        try:
            server.execute_command("LOCK.INFO", "example")  # "unknown command" without the module
            keys = server.dbsize()
        except redis.RedisError as error:
            sys.exit(f"{where} cannot be used: {error}. Start a server with the module, and name it by REDIS_URL.")
    if keys and os.environ.get("REDISLOCK_EXAMPLES") != "anywhere":
        remedy = "Name an empty server by REDIS_URL, or set REDISLOCK_EXAMPLES=anywhere."
        sys.exit(f"{where} has {keys} keys already. {remedy}")
    print(f"writes to {where}, and removes what it wrote", file=sys.stderr)


if __name__ == "__main__":
    may_write()
