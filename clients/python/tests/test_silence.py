"""Servers that are not there, say nothing, refuse for now, or are none: each wait ends when it should, and says why."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio

import redislock

from .servers import eventually

#: Seconds more than it should take, for a slow machine.
SLACK = 10.0
KINDS = ["threads", "asyncio"]


def fails(
    kind: str, port: int, names: list[str], wait: float | None, **options: Any
) -> tuple[redislock.RedislockError, float]:
    """The outcome of an acquire, and its time in seconds."""
    began = time.monotonic()
    with pytest.raises(redislock.RedislockError) as caught:
        if kind == "threads":
            with redis.Redis("127.0.0.1", port) as client, redislock.Locks(client, **options) as locks:
                try:
                    locks.many(names, wait=wait).acquire()
                finally:
                    took = time.monotonic() - began
        else:

            async def run() -> None:
                nonlocal took
                client = redis.asyncio.Redis(host="127.0.0.1", port=port)
                async with client, redislock.AsyncLocks(client, **options) as made:
                    try:
                        await made.many(names, wait=wait).acquire()
                    finally:
                        took = time.monotonic() - began

            asyncio.run(run())
    return caught.value, took


@contextlib.contextmanager
def peer(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """The port of something that is no server: it does this with each connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=one, args=[listener.accept()[0]], daemon=True).start()

        def one(connection: socket.socket) -> None:
            with connection, contextlib.suppress(OSError):
                while connection.recv(65536):
                    answer(connection)

        server = threading.Thread(target=serve)
        server.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            server.join()


@pytest.mark.parametrize(
    ("kind", "names", "wait", "says"),
    [
        *itertools.product(KINDS, (["k"], ["k", "l"]), (0, 1), ("nothing", "no")),
        ("threads", ["k"], None, "no"),
        ("threads", ["k", "l"], None, "nothing"),
        ("asyncio", ["k"], None, "nothing"),
        ("asyncio", ["k", "l"], None, "no"),
    ],
)
def test_no_server(kind: str, names: list[str], wait: float | None, says: str) -> None:
    with contextlib.ExitStack() as stack:
        if says == "nothing":
            port = stack.enter_context(peer(lambda _: None))
        else:
            free = stack.enter_context(socket.socket())
            free.bind(("127.0.0.1", 0))  # bound, but it does not listen
            port = free.getsockname()[1]
        error, took = fails(kind, port, names, wait)
    assert isinstance(error, redislock.ConnectionFailedError)
    assert f"127.0.0.1:{port}" in str(error)
    assert says == "nothing" or isinstance(error.__cause__, OSError), "the cause is chained"
    least, most = (10, 10) if wait is None else (wait, wait + 2)
    assert least <= took < most + SLACK


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("names", [["k"], ["k", "l"]], ids=["one", "many"])
def test_a_server_that_dies_during_a_wait_is_not_a_busy_lock(kind: str, names: list[str], start_server: Any) -> None:
    server = start_server()
    server.admin("LOCK.ACQUIRE", "k", "somebody", "PX", 60_000)
    killer = threading.Timer(0.5, server.kill)
    killer.start()
    error, took = fails(kind, server.port, names, 5)
    killer.join()
    assert isinstance(error, redislock.ConnectionFailedError)
    assert str(server.port) in str(error)
    assert 5 <= took < 7 + SLACK


def test_a_server_that_dies_is_not_a_busy_lock_for_a_waiter_in_the_process_either(start_server: Any) -> None:
    server = start_server()
    server.admin("LOCK.ACQUIRE", "k", "somebody", "PX", 60_000)
    errors: list[BaseException] = []

    def wait(locks: redislock.Locks, seconds: float) -> None:
        try:
            locks.lock("k", wait=seconds).acquire()
        except redislock.RedislockError as error:
            errors.append(error)

    with redis.Redis(port=server.port) as client, redislock.Locks(client, max_queued_per_lock=1) as locks:
        # The second waits for its place behind the first, and its time is up before the first one's is.
        waiting = [threading.Thread(target=wait, args=[locks, seconds]) for seconds in (4, 2)]
        for each in waiting:
            each.start()
            time.sleep(0.3)
        server.kill()
        for each in waiting:
            each.join()
    assert [type(error) for error in errors] == 2 * [redislock.ConnectionFailedError], errors


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("names", [["k"], ["k", "l"]], ids=["one", "many"])
def test_the_server_timeout_bounds_a_wait_without_an_end(kind: str, names: list[str]) -> None:
    with peer(lambda _: None) as port:
        error, took = fails(kind, port, names, None, server_timeout=2.5)
    assert isinstance(error, redislock.ConnectionFailedError)
    assert 2.5 <= took < 25


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("names", [["k"], ["k", "l"]], ids=["one", "many"])
def test_a_replica_refuses_what_does_not_wait_for_long(kind: str, names: list[str], start_server: Any) -> None:
    server = start_server("--replicaof", "127.0.0.1 1")
    error, took = fails(kind, server.port, names, 0)
    assert isinstance(error, redislock.ConnectionFailedError)
    assert took < 2 + SLACK
    assert str(error).startswith("READONLY ")
    assert f"127.0.0.1:{server.port}: this address leads to a replica" in str(error)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("names", [["k"], ["k", "l"]], ids=["one", "many"])
def test_a_wait_without_an_end_outlasts_a_refusal(
    names: list[str], start_server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "redislock")
    server = start_server("--replicaof", "127.0.0.1 1")
    with redis.Redis(port=server.port) as client, redislock.Locks(client) as locks:
        timer = threading.Timer(14, lambda: server.admin("REPLICAOF", "NO", "ONE"))
        timer.start()
        with locks.many(names):
            pass
        timer.join()
    said = [record for record in caplog.records if "READONLY" in record.message]
    assert len(said) == 1, "it is logged once for a while"
    assert said[0].levelno == logging.WARNING
    assert f"localhost:{server.port}" in said[0].message and "k" in said[0].message


def test_a_database_that_is_not_there(server: Any) -> None:
    with redis.Redis(port=server.port, db=99) as client, redislock.Locks(client) as locks:
        with pytest.raises(
            redislock.ServerRefusedError,
            match=rf"^ERR DB index is out of range \(localhost:{server.port}\) ",
        ):
            locks.lock("k", wait=1).acquire()


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (b"-ERR unknown command 'HELLO', with args beginning with: '3' \r\n", "has no RESP3"),
        (b"-NOPROTO sorry this protocol version is not supported\r\n", "has no RESP3"),
        (b"-NOAUTH HELLO must be called with the client already authenticated\r\n", "give the client a username"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak RESP"),
        (b":what\r\n", "does not speak RESP"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "wants TLS: give the client ssl=True"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_peer_that_is_no_server_of_ours(kind: str, reply: bytes, said: str) -> None:
    with peer(lambda connection: connection.sendall(reply)) as port:
        error, took = fails(kind, port, ["k"], 5)
    assert type(error) is redislock.ServerRefusedError, "it is not taken for a server without the module"
    assert said in str(error)
    assert f"127.0.0.1:{port}" in str(error)
    assert took < SLACK, "that will not pass"


def test_a_peer_that_hangs_up_at_the_login() -> None:
    with peer(lambda connection: connection.shutdown(socket.SHUT_RDWR)) as port:
        error, _ = fails("threads", port, ["k"], 0.5)
    assert isinstance(error, redislock.ConnectionFailedError)
    assert "it may want TLS, or be a proxy without RESP3" in str(error)


def with_password(start_server: Any) -> Any:
    """A server that wants a password, but not of the tests."""
    server = start_server()
    server.admin("CONFIG", "SET", "requirepass", "secret")
    return server


class Provider(redis.CredentialProvider):
    """Gives the password, but fails at these calls."""

    def __init__(self, fails: Callable[[int], bool]) -> None:
        self.calls, self.fails = 0, fails

    def get_credentials(self) -> tuple[str, str]:
        self.calls += 1
        if self.fails(self.calls):
            raise RuntimeError("the vault is sealed")
        return "default", "secret"

    async def get_credentials_async(self) -> tuple[str, str]:
        return self.get_credentials()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("names", [["k"], ["k", "l"]], ids=["one", "many"])
def test_a_provider_that_fails_once_ends_no_wait(kind: str, names: list[str], start_server: Any) -> None:
    server = with_password(start_server)

    async def by_tasks(provider: Provider) -> None:
        client = redis.asyncio.Redis(port=server.port, credential_provider=provider)
        async with client, redislock.AsyncLocks(client) as locks, locks.many(names, wait=10):
            pass

    for failing in range(1, 4):
        provider = Provider(lambda call, failing=failing: call == failing)  # type: ignore[misc]
        if kind == "asyncio":
            asyncio.run(by_tasks(provider))
            continue
        with redis.Redis(port=server.port, credential_provider=provider) as client, redislock.Locks(client) as locks:
            with locks.many(names, wait=10):
                pass


@pytest.mark.parametrize("wait", [0, 1])
def test_a_provider_that_fails_for_good_is_the_cause(wait: float, start_server: Any) -> None:
    server = with_password(start_server)
    client = redis.Redis(port=server.port, credential_provider=Provider(lambda _: True))
    with client, redislock.Locks(client) as locks, pytest.raises(redislock.ConnectionFailedError) as caught:
        locks.lock("k", wait=wait).acquire()
    assert f"localhost:{server.port}" in str(caught.value)
    assert "RuntimeError: the vault is sealed" in str(caught.value)
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.timeout(60)
def test_a_wait_continues_while_the_provider_fails(start_server: Any) -> None:
    server = with_password(start_server)
    is_sealed = threading.Event()
    provider = Provider(lambda _: is_sealed.is_set())
    with redis.Redis(port=server.port, credential_provider=provider) as client, redislock.Locks(client) as locks:
        hold = locks.lock("k").acquire()
        got: list[redislock.Hold] = []
        waiting = threading.Thread(target=lambda: got.append(locks.lock("k", wait=30).acquire()))
        waiting.start()
        eventually(lambda: server.info("redislock")["redislock_waiters"] == "1", "it waits")
        time.sleep(0.5)
        is_sealed.set()
        calls = provider.calls
        server.admin("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        eventually(lambda: provider.calls > calls + 3, "it is asked again")
        is_sealed.clear()
        hold.release()
        waiting.join(15)
        got[0].release()
