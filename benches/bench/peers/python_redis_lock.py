"""python-redis-lock: `SET NX`, and while that fails `BLPOP` of a list of signals, to which a script adds one at each
release. With an expiry, as its documentation advises, and without renewal, which a run would not live to see."""

from __future__ import annotations

import redis
import redis_lock

LEASE_S = 60


class Contender:
    def __init__(self, port: int, who: int) -> None:
        del who
        self.client = redis.Redis(port=port)
        self.client.ping()

    def take(self, patience_s: float) -> bool:
        del patience_s  # its own is in whole seconds; the line is served soon enough
        self.lock = redis_lock.Lock(self.client, "python-redis-lock", expire=LEASE_S)
        return self.lock.acquire()

    def free(self) -> None:
        self.lock.release()
