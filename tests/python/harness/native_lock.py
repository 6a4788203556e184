"""redis-py's Lock, on LOCK.* commands.

The same methods, arguments and exceptions, so that redis-py's promises of its lock can be tested on ours. Three things
differ, all on purpose. A lease is required. Waiters queue in the server instead of polling. `fence` is the token to
pass on to the protected resource.
"""

import threading
import uuid
from types import SimpleNamespace

from redis.exceptions import LockError, LockNotOwnedError


class NativeLock:
    """A lock in Redis that one owner holds at a time."""

    def __init__(
        self,
        redis,
        name,
        timeout,
        blocking=True,
        blocking_timeout=None,
        thread_local=True,
        raise_on_release_error=True,
    ):
        if timeout is None or timeout <= 0:
            raise LockError("a lease is required", lock_name=name)
        self.redis = redis
        self.name = name
        self.timeout = timeout
        self.blocking = blocking
        self.blocking_timeout = blocking_timeout
        self.raise_on_release_error = raise_on_release_error
        self.local = threading.local() if thread_local else SimpleNamespace()
        self.local.owner = None
        self.local.fence = None

    @property
    def owner(self):
        """The owner that holds it for this thread, or None."""
        return getattr(self.local, "owner", None)

    @property
    def fence(self):
        """The fencing token of this thread's hold, or None."""
        return getattr(self.local, "fence", None)

    def acquire(self, blocking=None, blocking_timeout=None, token=None):
        """Returns whether the lock was taken; waits in line by default."""
        owner = str(uuid.uuid4()) if token is None else token
        blocking = self.blocking if blocking is None else blocking
        if blocking_timeout is None:
            blocking_timeout = self.blocking_timeout
        command = ["LOCK.ACQUIRE", self.name, owner, "PX", _ms(self.timeout)]
        if blocking and blocking_timeout is None:
            command += ["BLOCK", 0]  # for the server 0 is without limit
        elif blocking and _ms(blocking_timeout) > 0:
            command += ["BLOCK", _ms(blocking_timeout)]
        fence = self.redis.execute_command(*command)
        if fence is None:
            return False
        self.local.owner, self.local.fence = owner, fence
        return True

    def release(self):
        """Gives the lock up."""
        owner, fence = self._held("release")
        self.local.owner = self.local.fence = None
        command = ("LOCK.RELEASE", self.name, owner, "TOKEN", fence)
        if self.redis.execute_command(*command) == 0:
            raise LockNotOwnedError("no longer owned", lock_name=self.name)

    def extend(self, additional_time, replace_ttl=False):
        """Lengthens the lease, or sets it if replace_ttl."""
        owner, fence = self._held("extend")
        lease_ms = _ms(additional_time)
        if not replace_ttl:
            lease_ms += self._lease_left_ms(fence)
        return self._renew(owner, fence, lease_ms)

    def reacquire(self):
        """Sets the lease to its full length again."""
        owner, fence = self._held("reacquire")
        return self._renew(owner, fence, _ms(self.timeout))

    def locked(self):
        """Returns whether the lock is held."""
        return self.redis.execute_command("LOCK.FENCE", self.name) is not None

    def owned(self):
        """Returns whether this thread's hold is live."""
        if self.fence is None:
            return False
        return self.redis.execute_command("LOCK.FENCE", self.name, self.fence) == 1

    def __enter__(self):
        if not self.acquire():
            raise LockError("not acquired in time", lock_name=self.name)
        return self

    def __exit__(self, *_):
        try:
            self.release()
        except LockNotOwnedError:
            if self.raise_on_release_error:
                raise

    def _held(self, what):
        if self.owner is None:
            raise LockError(f"cannot {what} an unlocked lock", lock_name=self.name)
        return self.owner, self.fence

    def _lease_left_ms(self, fence):
        info = self.redis.execute_command("LOCK.INFO", self.name)
        if info is not None:
            (hold,) = info[b"holders"]
            if hold[b"token"] == fence:
                return hold[b"lease-left-ms"]
        raise LockNotOwnedError("no longer owned", lock_name=self.name)

    def _renew(self, owner, fence, lease_ms):
        command = ("LOCK.RENEW", self.name, owner, "PX", lease_ms, "TOKEN", fence)
        if self.redis.execute_command(*command) == 0:
            raise LockNotOwnedError("no longer owned", lock_name=self.name)
        return True


def _ms(seconds):
    return int(seconds * 1000)
