"""Locks for threads, against a real server."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
import valkey

import redislock
from redislock import _rules

from .servers import eventually


def test_a_lock_is_held_and_given_up(locks: redislock.Locks, client: redis.Redis) -> None:
    with locks.lock("invoice:42", wait=5).acquire() as hold:
        assert client.execute_command("LOCK.FENCE", "invoice:42", hold.token) == 1
        assert 2.5 < hold.check() <= 3
        assert hold.owner.split(":")[1] == str(os.getpid())
        with pytest.raises(redislock.LockTimeoutError), locks.lock("invoice:42", wait=0):
            pass
        locks.check_token("invoice:42", hold.token)
    assert client.execute_command("LOCK.FENCE", "invoice:42") is None
    with pytest.raises(redislock.LockLostError):
        hold.check()
    with pytest.raises(redislock.FencedError):
        locks.check_token("invoice:42", hold.token)


def test_a_wait_that_has_ended_says_so(locks: redislock.Locks) -> None:
    with locks.lock("k").acquire():
        began = time.monotonic()
        with pytest.raises(redislock.LockTimeoutError), locks.lock("k", wait=0.2):
            pass
        assert 0.2 <= time.monotonic() - began < 3


def test_threads_are_served_in_the_order_in_which_they_came(locks: redislock.Locks, server: Any) -> None:
    order: list[int] = []

    def work(number: int) -> None:
        with locks.lock("k"):
            order.append(number)

    with ThreadPoolExecutor(40) as pool:
        with locks.lock("k"):
            for number in range(40):
                pool.submit(work, number)
                if number < 16:  # these stand in the line of the server
                    eventually(lambda number=number: waiters(server, "k") >= number + 1, "it waits")
                else:
                    time.sleep(0.005)
    assert order[:16] == list(range(16)) and sorted(order) == list(range(40))


def test_the_body_s_own_error_is_not_hidden(locks: redislock.Locks, client: redis.Redis) -> None:
    with pytest.raises(ZeroDivisionError), locks.lock("k"):
        client.delete("k")
        time.sleep(0.1)
        raise ZeroDivisionError
    assert not client.exists("k")


def test_a_loss_is_reported_once_by_the_server(locks: redislock.Locks, client: redis.Redis) -> None:
    told: list[str] = []
    hold = locks.lock("k", lease=60).acquire()
    hold.on_lost(told.append)
    eventually(lambda: client.info("stats")["tracking_total_keys"] > 0, "the server was asked to tell")
    client.delete("k")
    assert hold.wait_until_lost(10) == "push"
    eventually(lambda: told, "it is told")
    hold._lose("renewal")
    assert told == ["push"] and hold.lost == "push"
    with pytest.raises(redislock.LockLostError, match="push"):
        hold.release()


def test_a_block_whose_lock_was_lost_ends_in_an_error(locks: redislock.Locks, client: redis.Redis) -> None:
    with pytest.raises(redislock.LockLostError), locks.lock("k") as hold:
        client.delete("k")
        hold.wait_until_lost(10)


def test_a_hold_lasts_for_many_leases(locks: redislock.Locks, client: redis.Redis) -> None:
    with locks.lock("k", lease=0.6) as hold:
        for _ in range(20):
            time.sleep(0.1)
            assert client.execute_command("LOCK.FENCE", "k", hold.token) == 1
            assert hold.check() > 0


def test_without_renewal_and_after_the_longest_hold_the_lease_ends(locks: redislock.Locks) -> None:
    for reason, options in (("deadline", {"renew": False}), ("max_hold", {"max_hold": 0.5})):
        hold = locks.lock("k", lease=0.5, **options).acquire()
        assert hold.wait_until_lost(10) == reason
        with pytest.raises(redislock.LockLostError, match=reason):
            hold.check()


def test_a_lease_can_be_extended(locks: redislock.Locks, client: redis.Redis) -> None:
    hold = locks.lock("k", renew=False).acquire()
    hold.extend(20)
    assert 19 < hold.check() <= 20
    client.execute_command("LOCK.RELEASE", "k", hold.owner)
    for _ in range(2):
        with pytest.raises(redislock.LockLostError):
            hold.extend(20)


@pytest.mark.parametrize("names", [["k"], ["k", "l"]], ids=["one", "many"])
def test_a_grant_that_comes_after_its_lease_is_asked_for_again_while_there_is_time(
    names: list[str], locks: redislock.Locks, client: redis.Redis
) -> None:
    with locks.lock("other"):
        pass  # from now on there is a connection
    client.execute_command("CLIENT", "PAUSE", 400, "WRITE")
    with pytest.raises(redislock.LockLostError, match="deadline"):
        locks.many(names, lease=0.2, wait=0).acquire()
    eventually(lambda: not client.exists("k"), "it is free")
    client.execute_command("CLIENT", "PAUSE", 400, "WRITE")
    with locks.many(names, lease=0.2, wait=20) as hold:
        assert hold.check() > 0


def test_a_hold_says_what_it_is(locks: redislock.Locks) -> None:
    with locks.lock("k") as hold:
        assert repr(hold) == f"<Hold 'k' token={hold.token} held>"
    assert repr(hold).endswith(" given up>")


def test_the_loss_of_one_hold_does_no_harm_to_the_next_of_the_same_owner(
    locks: redislock.Locks, client: redis.Redis
) -> None:
    hold = locks.lock("k", owner="ann").acquire()
    client.delete("k")
    token = client.execute_command("LOCK.ACQUIRE", "k", "ann", "PX", 60_000)
    assert hold.wait_until_lost(10) == "push"
    with pytest.raises(redislock.LockLostError):
        hold.release()
    assert client.execute_command("LOCK.FENCE", "k", token) == 1
    client.delete("k")


def test_kinds(locks: redislock.Locks) -> None:
    with locks.read("k").acquire() as first, locks.read("k").acquire() as second:
        assert second.token > first.token
        with pytest.raises(redislock.LockTimeoutError), locks.write("k", wait=0):
            pass
    with locks.semaphore("s", 2).acquire(), locks.semaphore("s", 2, wait=0):
        with pytest.raises(redislock.LockTimeoutError), locks.semaphore("s", 2, wait=0.1):
            pass
        with pytest.raises(redislock.LockKindMismatchError), locks.lock("s", wait=1):
            pass


def test_many_locks_are_waited_for_together(locks: redislock.Locks, client: redis.Redis) -> None:
    got: list[int] = []

    def work() -> None:
        with locks.many(["a", "b", "c"], wait=20) as hold:
            got.append(hold.token)
            assert all(client.execute_command("LOCK.FENCE", name, hold.token) == 1 for name in "abc")
            assert hold.remaining > 2

    with locks.lock("b"):
        thread = threading.Thread(target=work)
        thread.start()
        eventually(lambda: client.execute_command("LOCK.HELDBY", "nobody") == [], "the server answers")
        time.sleep(0.1)
        assert not got
    thread.join()
    assert len(got) == 1
    with pytest.raises(redislock.LockTimeoutError), locks.lock("b").acquire(), locks.many(["a", "b"], wait=0.2):
        pass


def test_a_wait_shorter_than_the_quarantine_says_so(start_server: Any) -> None:
    server = start_server(module_arguments=("quarantine", 600_000))
    with redis.Redis(port=server.port) as client, redislock.Locks(client, lease=3) as locks:
        for wait in (0, 0.3):
            for lock in (locks.lock("a", wait=wait), locks.many(["a", "b"], wait=wait)):
                with pytest.raises(redislock.QuarantineError) as refused:
                    lock.acquire()
                assert 500 < refused.value.left <= 600


def test_each_call_under_a_lock_of_its_own(locks: redislock.Locks) -> None:
    @locks.locked("report:{number}", wait=0, busy="skip")
    def report(number: int) -> str:
        with pytest.raises(redislock.AlreadyHeldError), locks.lock(f"report:{number}", wait=0):
            pass
        return f"report {number}"

    assert report(7) == "report 7"
    with locks.lock("report:7").acquire():
        assert report(7) is None and report(number=8) == "report 8"
    with pytest.raises(ValueError, match="busy"):
        locks.locked("x", busy="maybe")


def test_a_leader_is_elected_deposed_and_elected_again(locks: redislock.Locks, client: redis.Redis) -> None:
    events: list[str] = []
    leader = locks.leader("job", on_elected=lambda hold: events.append("elected"), on_deposed=events.append)
    with leader:
        eventually(lambda: leader.hold is not None, "it leads")
        client.delete("job")
        eventually(lambda: events == ["elected", "push", "elected"], "it leads again")
    assert not client.exists("job")
    with locks.lock("job"), leader:
        time.sleep(0.1)
        assert leader.hold is None
    assert events == ["elected", "push", "elected"]


def test_a_child_has_no_holds(locks: redislock.Locks, client: redis.Redis) -> None:
    with locks.lock("k") as hold:
        child = os.fork()
        if child == 0:
            try:
                refused = 0
                for work in (hold.check, hold.release, hold.detach, lambda: hold.extend(1)):
                    try:
                        work()
                    except redislock.LockLostError as error:
                        refused += error.reason == "fork"
                # But it may take locks of its own.
                with locks.lock("child", wait=5) as its:
                    refused += its.owner.split(":")[1] == str(os.getpid())
                os._exit(0 if refused == 5 and hold.remaining == 0 else 1)
            except BaseException:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        assert hold.check() > 0
        assert client.execute_command("LOCK.FENCE", "k", hold.token) == 1
        time.sleep(1.5)
        assert hold.check() > 1, "it is renewed by the parent"


def test_ten_thousand_locks_leave_nothing(locks: redislock.Locks, client: redis.Redis) -> None:
    def cycle(times: int) -> None:
        for number in range(times):
            with locks.lock(f"k{number % 100}", wait=5):
                pass

    def footprint() -> tuple[int, int, int]:
        gc.collect()
        with open("/proc/self/statm") as statm:
            pages = int(statm.read().split()[1])
        return threading.active_count(), len(os.listdir("/proc/self/fd")), pages * 4

    # A hold that lasts needs a connection of its own, which stays. On a busy machine one of the others may last, too.
    with locks.lock("k0", wait=5):
        time.sleep(10 * _rules.WATCH_AFTER)
    cycle(2000)
    before = footprint()
    cycle(8000)
    after = footprint()
    assert after[0] <= before[0] and after[1] <= before[1]
    assert after[2] - before[2] < 4000, f"memory grew from {before[2]} to {after[2]} kB"
    assert client.dbsize() == 0


def test_unreferenced_locks_end_their_connections(server: Any, client: redis.Redis) -> None:
    made = redislock.Locks(client)
    with made.lock("k", wait=5).acquire():
        with pytest.raises(redislock.LockTimeoutError), made.lock("k", wait=0.1):
            pass
    before = int(server.info("clients")["connected_clients"])
    del made
    gc.collect()
    eventually(lambda: int(server.info("clients")["connected_clients"]) < before, "they are closed")


def test_closing_gives_up_all(server: Any, client: redis.Redis) -> None:
    made = redislock.Locks(client)
    held = made.lock("a").acquire()
    failed: list[BaseException] = []

    def wait() -> None:
        try:
            made.lock("a").acquire()
        except redislock.LocksClosedError as error:
            failed.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    eventually(lambda: waiters(server, "a") == 1, "it waits")
    made.close()
    thread.join(10)
    assert len(failed) == 1 and not client.exists("a") and held.lost == "close"
    eventually(lambda: server.info("redislock")["redislock_waiters"] == "0", "nobody waits")


def test_closing_is_reported_to_holders(client: redis.Redis) -> None:
    made, told = redislock.Locks(client), list[str]()
    with pytest.raises(redislock.LockLostError, match="close"), made.lock("k") as hold:
        hold.on_lost(told.append)
        made.close()
        assert hold.lost == "close" and not client.exists("k")
        eventually(lambda: told == ["close"], "it is told")
    with pytest.raises(redislock.LocksClosedError, match="these locks are closed"):
        made.lock("k").acquire()


def test_closing_deposes_a_leader(client: redis.Redis) -> None:
    made, told = redislock.Locks(client), list[str]()
    leader = made.leader("job", on_deposed=told.append)
    leader.start()
    eventually(lambda: leader.hold is not None, "it leads")
    made.close()
    eventually(lambda: told == ["close"], "it is told")
    assert leader.hold is None and not client.exists("job")
    leader.resign()


@pytest.mark.parametrize("end", ["pass", "raise SystemExit(0)"])
def test_a_program_that_ends_gives_up_what_it_holds(server: Any, client: redis.Redis, end: str) -> None:
    source = f"""
import redis, redislock
locks = redislock.Locks(redis.Redis(port={server.port}), lease=60)
hold = locks.lock("k").acquire()
{end}
"""
    ran = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=30, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert not client.exists("k")


def test_hooks_are_told(server: Any, client: redis.Redis) -> None:
    counters = redislock.Counters()
    with redislock.Locks(client, hooks=counters) as made:
        hold = made.lock("k").acquire()
        with pytest.raises(redislock.LockTimeoutError), made.lock("k", wait=1):
            pass
        client.delete("k")
        hold.wait_until_lost(10)
        with made.lock("k"):
            pass
    found = counters.grants, counters.timeouts, counters.losses, counters.releases, counters.waits
    assert found == (2, 1, 1, 1, 1)


def test_a_hook_that_fails_does_no_harm(server: Any, client: redis.Redis) -> None:
    class Broken(redislock.Hooks):
        def granted(self, name: str, waited: float) -> None:
            raise ZeroDivisionError

    with redislock.Locks(client, hooks=Broken()) as made, made.lock("k") as hold:
        assert hold.token


def test_the_other_driver(server: Any) -> None:
    with valkey.Valkey(port=server.port) as client, redislock.Locks(client) as locks, locks.lock("k").acquire() as hold:
        with pytest.raises(valkey.exceptions.LockError), locks.lock("k", wait=0):
            pass
        assert hold.token


def test_a_lock_is_entered_once_at_a_time(locks: redislock.Locks) -> None:
    lock = locks.lock("k")
    with lock, pytest.raises(redislock.AlreadyHeldError, match="k: the thread or task that asks"), lock:
        pass
    with lock:
        pass


def waiters(server: Any, name: str) -> int:
    found = server.admin("LOCK.INFO", name)
    return int(dict(zip(found[::2], found[1::2], strict=True))["waiters"]) if found else 0


def test_a_hold_can_be_used_as_a_block(locks: redislock.Locks, client: redis.Redis) -> None:
    with locks.lock("k").acquire() as hold:
        assert client.execute_command("LOCK.FENCE", "k", hold.token) == 1
    assert client.execute_command("LOCK.FENCE", "k") is None


def test_no_block_runs_under_a_hold_that_has_ended(locks: redislock.Locks, client: redis.Redis) -> None:
    given_up, lost = locks.lock("k").acquire(), locks.lock("j").acquire()
    given_up.release()
    client.delete("j")
    lost.wait_until_lost(10)
    for hold, reason in ((given_up, "release"), (lost, "push")):
        with pytest.raises(redislock.LockLostError, match=reason), hold:
            raise AssertionError("the block has run")


def test_a_loss_is_noted_on_the_error_of_the_body(locks: redislock.Locks, client: redis.Redis) -> None:
    with pytest.raises(ValueError, match="its own") as raised, locks.lock("k") as hold:
        client.delete("k")
        eventually(lambda: hold.lost is not None, "it is lost")
        raise ValueError("its own")
    assert any("lost lock 'k'" in note for note in raised.value.__notes__)


def test_a_refused_request_leaves_nothing_to_do_at_the_end(server: Any) -> None:
    program = (
        "import redis, redislock, sys\n"
        "client = redis.Redis(port=int(sys.argv[1]))\n"
        "client.set('text', 'text')\n"
        "try:\n"
        "    redislock.Locks(client).lock('text', wait=1).acquire()\n"
        "except redislock.ServerRefusedError:\n"
        "    print('refused')\n"
    )
    server.admin("CONFIG", "RESETSTAT")
    ran = subprocess.run(
        [sys.executable, "-c", program, str(server.port)], capture_output=True, text=True, timeout=60, check=True
    )
    assert (ran.stdout, ran.stderr) == ("refused\n", "")
    calls = server.info("commandstats")["cmdstat_lock.release"].split(",")[0]
    assert calls in ("calls=1", "calls=2"), "it does not ask again for what was refused"


@pytest.mark.parametrize("pause", [0, 2])
def test_a_program_without_a_server_ends_with_one_error_only(pause: int) -> None:
    # The pause comes after the interpreter has ended its pools of threads, and before it ends the library.
    program = (
        f"import threading, time\nthreading._register_atexit(time.sleep, {pause})\n"
        "import redis, redislock\n"
        "try:\n"
        "    redislock.Locks(redis.Redis('localhost', 1)).lock('k', wait=0).acquire()\n"
        "except redislock.ConnectionFailedError as error:\n"
        "    print(error)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert (ran.stderr, ran.stdout.count("no server answered in time")) == ("", 1)


@contextlib.contextmanager
def loads_and_falls_silent(seconds: float) -> Iterator[int]:
    """The port of a server that is loading for `seconds` after the first connection; it answers no later connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as silent:

        def serve() -> None:
            end: float | None = None
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    end = end or time.monotonic() + seconds
                    silent.enter_context(connection)
                    if time.monotonic() < end:
                        connection.sendall(b"-LOADING the dataset is being loaded\r\n")

        server = threading.Thread(target=serve)
        server.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            server.join()


def test_the_reason_of_a_failure_outlives_a_last_try_that_was_cut_short() -> None:
    # The time of a request ends 2.5 s after its beginning, and that of a try is 2 s.
    with (
        loads_and_falls_silent(1) as port,
        redislock.Locks(redis.Redis(port=port)) as locks,
        pytest.raises(redislock.ConnectionFailedError, match=r"^LOADING .* loaded \(localhost:\d+\) \(lock 'k'\)$"),
    ):
        locks.lock("k", wait=0.5).acquire()


def test_a_server_that_is_silent_is_said_to_be() -> None:
    with (
        loads_and_falls_silent(0) as port,
        redislock.Locks(redis.Redis(port=port, socket_connect_timeout=0.25)) as locks,
        pytest.raises(
            redislock.ConnectionFailedError, match=rf"localhost:{port} does not answer: no connection within 0\.25 s "
        ),
    ):
        locks.lock("k", wait=0).acquire()
