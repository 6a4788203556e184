"""Clients of a cluster, of Sentinel, and of independent servers, as the drivers make them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.cluster
import redis.sentinel
import valkey
import valkey.asyncio

import redislock
from redislock.redlock import AsyncRedlock, Redlock

from .servers import GROUP, Meddler, cluster_of_three, eventually, pair_with_sentinels, role_of

NAMES = [f"k{number}" for number in range(12)]


@pytest.mark.timeout(120)
def test_a_cluster(start_server: Any) -> None:
    nodes = cluster_of_three(start_server)
    with redis.RedisCluster("127.0.0.1", nodes[0].port) as client, redislock.Locks(client, lease=2) as locks:
        with contextlib.ExitStack() as stack:
            holds = [stack.enter_context(locks.lock(name, wait=5, owner="ann")) for name in NAMES]
            for name in NAMES[:4]:
                with pytest.raises(redislock.LockTimeoutError), locks.lock(name, wait=0.1):
                    pass
            eventually(lambda: min(hold.remaining for hold in holds) > 1.5, "they are renewed")
            time.sleep(2.5)
            assert all(hold.check() for hold in holds)
            slot_goes(nodes, "k0")
            time.sleep(2)
            assert holds[0].check(), "it is renewed on the node to which its slot went"
        finish = slot_is_on_its_way(nodes, "k1")
        with locks.lock("k1", wait=5) as hold:
            assert hold.check(), "a new lock of that slot is made on the other node (ASK)"
        finish()
        with locks.many(["{tag}a", "{tag}b"], wait=5):
            pass
        assert locks.ping().count(".") == 2
        for node in nodes:
            with redis.Redis(port=node.port) as alone, redislock.Locks(alone) as its:
                assert its.ping() == locks.ping(), "a node is healthy, whoever has the slot"
        with pytest.raises(redislock.ServerRefusedError, match="CROSSSLOT"), locks.many(["k0", "k1"], wait=0):
            pass

    with valkey.ValkeyCluster("127.0.0.1", nodes[2].port) as other, redislock.Locks(other) as locks:
        with locks.lock("k0", wait=5), locks.lock("k1", wait=5), locks.lock("k2", wait=5):
            pass

    async def with_valkey() -> None:
        client = valkey.asyncio.ValkeyCluster(host="127.0.0.1", port=nodes[1].port)
        async with client, redislock.AsyncLocks(client) as locks:
            for name in NAMES[:3]:
                async with locks.lock(name, wait=5):
                    pass

    asyncio.run(with_valkey())

    async def asynchronously() -> None:
        client = redis.asyncio.RedisCluster(host="127.0.0.1", port=nodes[1].port)
        async with client, redislock.AsyncLocks(client, lease=2) as locks:
            async with contextlib.AsyncExitStack() as stack:
                for name in NAMES:
                    await stack.enter_async_context(locks.lock(name, owner="ben"))

    asyncio.run(asynchronously())


@pytest.mark.timeout(120)
def test_a_waiter_at_a_slot_that_is_on_its_way(start_server: Any) -> None:
    nodes = cluster_of_three(start_server)

    async def takes_it() -> None:
        client = redis.asyncio.RedisCluster(host="127.0.0.1", port=nodes[0].port)
        async with client, redislock.AsyncLocks(client) as locks:
            # Knows the nodes, and that they report changes.
            async with locks.lock(NAMES[0], wait=5):
                pass
            finish = slot_is_on_its_way(nodes, "gone")
            target = (nodes[0].admin("CLUSTER", "KEYSLOT", "gone") * 3 // 16384 + 1) % 3
            # The new node serves it to a client that says ASKING before each request.
            nodes[target].admin("ASKING")
            nodes[target].admin("LOCK.ACQUIRE", "gone", "somebody", "PX", 60_000)
            waits = asyncio.create_task(locks.lock("gone", wait=8).acquire())
            await asyncio.sleep(0.5)
            nodes[target].admin("ASKING")
            assert nodes[target].admin("LOCK.RELEASE", "gone", "somebody") == 1
            hold = await waits
            await hold.release()
            finish()

    asyncio.run(takes_it())


@pytest.mark.timeout(200)
@pytest.mark.parametrize("is_ours", [True, False], ids=["held here", "held elsewhere"])
def test_a_thousand_waiters_whose_slot_moves_are_called_in_their_order(is_ours: bool, start_server: Any) -> None:
    # A waiter lets those before it ask again first for 1.7 s. A machine that is busy for longer may mix them, once.
    for _ in range(3):
        served, took = serve_a_thousand(is_ours, start_server)
        if served == sorted(served):
            break
    assert served == sorted(served)
    # If their order were another than the server's, each of 62 turns would be noticed up to 1.7 s late.
    assert took < 40, f"they were served in {took:.1f} s"


def serve_a_thousand(is_ours: bool, start_server: Any) -> tuple[list[int], float]:
    nodes = cluster_of_three(start_server)
    name, source = "k0", nodes[0].admin("CLUSTER", "KEYSLOT", "k0") * 3 // 16384
    target = (source + 1) % 3
    served: list[int] = []

    def waiters_there() -> int:
        info = nodes[target].admin("LOCK.INFO", name)
        return int(dict(zip(info[::2], info[1::2], strict=True))["waiters"]) if info else 0

    async def is_served(locks: redislock.AsyncLocks, number: int) -> None:
        async with locks.lock(name, wait=60):
            served.append(number)

    async def waits_and_is_served() -> float:
        client = redis.asyncio.RedisCluster(host="127.0.0.1", port=nodes[0].port)
        async with client, redislock.AsyncLocks(client) as locks:
            for other in NAMES[1:]:  # all nodes are connected before
                await (await locks.lock(other).acquire()).release()
            if not is_ours:
                nodes[source].admin("LOCK.ACQUIRE", name, "ann", "PX", 60_000)
            hold = await locks.lock(name).acquire() if is_ours else None
            tasks = []
            for number in range(1000):
                tasks.append(asyncio.create_task(is_served(locks, number)))
                # The waiters in the server's line ask again at times that are not in their order.
                await asyncio.sleep(0.15 if number < 16 else 0)
            await asyncio.to_thread(slot_goes, nodes, name)
            await asyncio.to_thread(eventually, lambda: waiters_there() == 16, "as many as may wait there")
            began = time.monotonic()
            if hold is not None:
                await hold.release()
            else:
                nodes[target].admin("LOCK.RELEASE", name, "ann")
            await asyncio.gather(*tasks)
            return time.monotonic() - began

    return served, asyncio.run(waits_and_is_served())


def slot_goes(nodes: list[Any], name: str) -> None:
    """The slot of this name goes to another node with what is in it."""
    slot_is_on_its_way(nodes, name)()


def slot_is_on_its_way(nodes: list[Any], name: str) -> Callable[[], None]:
    """The slot of this name begins to go to another node; what is returned ends that."""
    slot = nodes[0].admin("CLUSTER", "KEYSLOT", name)
    ids = [node.admin("CLUSTER", "MYID") for node in nodes]
    source = slot * 3 // 16384
    target = (source + 1) % 3
    nodes[target].admin("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source])
    nodes[source].admin("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target])

    def finish() -> None:
        if names := nodes[source].admin("CLUSTER", "GETKEYSINSLOT", slot, 100):
            nodes[source].admin("MIGRATE", "127.0.0.1", nodes[target].port, "", 0, 5000, "KEYS", *names)
        for node in (nodes[target], *nodes):
            node.admin("CLUSTER", "SETSLOT", slot, "NODE", ids[target])

    return finish


@pytest.mark.timeout(120)
def test_a_failover_by_sentinel(start_server: Any) -> None:
    primary, replica, sentinels = pair_with_sentinels(start_server)
    places = [("127.0.0.1", sentinel.port) for sentinel in sentinels]
    told: list[str] = []
    with redislock.Locks(redis.sentinel.Sentinel(places).master_for(GROUP), lease=20) as locks:
        hold = locks.lock("k", wait=5).acquire()
        hold.on_lost(told.append)
        eventually(lambda: replica.admin("LOCK.FENCE", "k") == hold.token, "the replica knows of it")
        sentinels[0].admin("SENTINEL", "FAILOVER", GROUP)
        eventually(lambda: sentinels[0].primary() == replica.port, "the replica is the primary", 30)
        eventually(lambda: role_of(replica) == "master", "it knows")
        # Until the old primary knows, too, it grants and releases what the new one never hears of.
        eventually(lambda: role_of(primary) == "slave", "so does the old one", 30)
        assert hold.check() > 0 and not told
        with pytest.raises(redislock.LockTimeoutError), locks.lock("k", wait=0.2):
            pass
        hold.release()

    async def asynchronously() -> None:
        client = redis.asyncio.sentinel.Sentinel(places).master_for(GROUP)
        async with redislock.AsyncLocks(client) as locks, locks.lock("k", wait=10) as hold:
            assert replica.admin("LOCK.FENCE", "k", hold.token) == 1

    asyncio.run(asynchronously())
    with pytest.raises(ValueError, match="primary"):
        redislock.Locks(redis.sentinel.Sentinel(places).slave_for(GROUP))


@pytest.mark.timeout(120)
def test_independent_servers(start_server: Any) -> None:
    servers = [start_server() for _ in range(3)]
    clients = [redis.Redis(port=server.port) for server in servers]
    with Redlock(clients, lease=2) as locks:
        with locks.lock("k", wait=5).acquire() as hold:
            assert all(server.admin("LOCK.FENCE", "k", hold.token) == 1 for server in servers), "one token"
            with pytest.raises(redislock.LockTimeoutError), locks.lock("k", wait=0):
                pass
            locks.check_token("k", hold.token)
            time.sleep(2.5)
            assert hold.check() > 0, "it is renewed"
            first = hold.token
        with pytest.raises(ValueError, match="independent"), locks.semaphore("s", 2):
            pass
        servers[0].kill()
        hold = locks.lock("k", wait=5).acquire()
        assert hold.token > first
        servers[1].admin("DEL", "k")
        # One of three says no and one says nothing: that is no majority for either, so the deadline decides.
        assert hold.wait_until_lost(20) == "deadline"
        for work in (hold.check, hold.release):
            with pytest.raises(redislock.LockLostError):
                work()
        servers[0].start()
        hold = locks.lock("k", wait=20).acquire()
        for server in servers[:2]:
            server.admin("DEL", "k")
        assert hold.wait_until_lost(20) == "push"
        servers[0].kill()
        servers[1].kill()
        with pytest.raises(redislock.ConnectionFailedError), locks.lock("k", wait=0.5):
            pass
    for client in clients:
        client.close()

    async def asynchronously() -> None:
        servers[0].start()
        made = [redis.asyncio.Redis(port=server.port) for server in servers]
        async with AsyncRedlock(made, lease=2) as locks:
            async with locks.lock("k", wait=20) as hold:
                assert hold.remaining > 0
            task = asyncio.create_task(locks.lock("k", wait=5).acquire())
            await asyncio.sleep(0.002)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            async with locks.lock("k", wait=10):
                pass

    asyncio.run(asynchronously())


@pytest.mark.timeout(120)
def test_too_few_independent_servers(start_server: Any) -> None:
    servers = [start_server() for _ in range(3)]
    clients = [redis.Redis(port=server.port) for server in servers]
    with Redlock(clients, lease=60) as locks:
        hold = locks.lock("k", wait=20).acquire()
        servers[0].kill()
        locks.check_token("k", hold.token)
        with pytest.raises(redislock.FencedError):
            locks.check_token("k", hold.token - 1)
        servers[1].kill()
        asks: list[Any] = [lambda: locks.check_token("k", hold.token), hold.release]
        for work in asks:
            with pytest.raises(redislock.ConnectionFailedError):
                work()
        began = time.monotonic()
        with pytest.raises(redislock.ConnectionFailedError, match="too few of 3"):
            locks.lock("k").acquire()
        assert time.monotonic() - began > 9, "a wait without an end is patient"


def test_an_independent_server_counts_once() -> None:
    clients = [redis.Redis(port=port, db=db) for port, db in ((7001, 0), (7002, 0), (7001, 1))]
    with pytest.raises(ValueError, match=r"must differ: localhost:7001 is named twice"):
        Redlock(clients)
    for number in (0, 1, 2, 4):
        with pytest.raises(ValueError, match=f"an odd number of servers is needed, three or more, not {number}"):
            Redlock([redis.Redis(port=7001 + each) for each in range(number)])


def test_an_independent_server_with_two_names_counts_once(start_server: Any) -> None:
    servers = [start_server() for _ in range(3)]
    servers[2].kill()
    names = [("localhost", servers[0]), ("127.0.0.1", servers[0]), ("127.0.0.1", servers[2])]
    one = rf"must differ: localhost:{servers[0].port} and 127\.0\.0\.1:{servers[0].port} are one server"

    def late() -> None:
        """The other server grants after the one with two names: with one of these it would be a majority."""
        servers[1].admin("CLIENT", "PAUSE", 1000, "WRITE")

    for third in (servers[2], servers[1]):  # one that is away, and one that grants it too
        names[2] = ("127.0.0.1", third)
        clients = [redis.Redis(host, server.port) for host, server in names]
        with Redlock(clients, lease=60) as locks:
            for wait in (None, 0):
                late()
                with pytest.raises(ValueError, match=one):
                    locks.lock("k", wait=wait).acquire()

    async def asynchronously() -> None:
        clients = [redis.asyncio.Redis(host=host, port=server.port) for host, server in names]
        async with AsyncRedlock(clients, lease=60) as locks:
            late()
            with pytest.raises(ValueError, match=one):
                async with locks.lock("k"):
                    pass

    asyncio.run(asynchronously())
    for server in servers[:2]:
        eventually(lambda server=server: server.info("redislock")["redislock_holds"] == "0", "nothing is held")


def test_independent_servers_may_grant_with_equal_tokens(start_server: Any) -> None:
    servers = [start_server() for _ in range(3)]
    ahead = int(1_000_000 * (time.time() + 20))
    for server in servers:
        server.admin("LOCK.ACQUIRE", "first", "me", "PX", 60_000)
        assert server.admin("LOCK.RENEW", "first", "me", "PX", 60_000, "RAISE", ahead) == 1
    with Redlock([redis.Redis(port=server.port) for server in servers], lease=3) as locks:
        for _ in range(3):
            with locks.lock("k", wait=0) as hold:
                assert hold.token > ahead
                assert sum(server.admin("LOCK.FENCE", "k", hold.token) == 1 for server in servers) >= 2


@pytest.mark.timeout(120)
def test_independent_servers_without_the_module(start_server: Any) -> None:
    servers = [start_server(), start_server(with_module=False), start_server(with_module=False)]
    clients = [redis.Redis(port=server.port) for server in servers]
    with Redlock(clients, lease=60) as locks:
        began = time.monotonic()
        for wait in (None, 20, 0):
            with pytest.raises(redislock.ModuleMissingError):
                locks.lock("k", wait=wait).acquire()
        with pytest.raises(redislock.ModuleMissingError):
            locks.check_token("k", 1)
        assert time.monotonic() - began < 15, "it is told at once"


def test_no_module(start_server: Any) -> None:
    server = start_server(with_module=False)
    with redislock.Locks(redis.Redis(port=server.port)) as locks:
        for wait in (0, 1):
            with pytest.raises(redislock.ModuleMissingError, match="loadmodule"), locks.lock("k", wait=wait):
                pass


def test_a_node_of_a_cluster_is_no_server_alone(start_server: Any) -> None:
    one, other = cluster_of_three(start_server)[:2]
    name = next(str(n) for n in range(99) if one.admin("CLUSTER", "KEYSLOT", str(n)) // 5462 == 1)
    with redislock.Locks(redis.Redis(port=one.port)) as locks:
        for ask in (
            lambda: locks.lock(name, wait=0).acquire(),
            lambda: locks.lock(name).acquire(),
            lambda: locks.many([f"{{{name}}}a", f"{{{name}}}b"]).acquire(),
            lambda: locks.check_token(name, 5),
        ):
            began = time.monotonic()
            with pytest.raises(redislock.ServerRefusedError, match=f"MOVED .*{other.port}: .*cluster client"):
                ask()
            assert time.monotonic() - began < 15


def test_nodes_that_send_a_request_to_each_other_are_not_asked_without_a_pause(start_server: Any) -> None:
    nodes = cluster_of_three(start_server)
    slot = nodes[0].admin("CLUSTER", "KEYSLOT", "k")
    ids = [node.admin("CLUSTER", "MYID") for node in nodes]
    owner = slot // 5462
    nodes[owner].admin("CLUSTER", "SETSLOT", slot, "NODE", ids[owner - 1])  # the other one knows nothing of that
    with redislock.Locks(redis.RedisCluster("127.0.0.1", nodes[0].port)) as locks:
        with pytest.raises(redislock.ConnectionFailedError, match="MOVED"):
            locks.lock("k", wait=0).acquire()
    refused = sum(int(node.info("errorstats").get("errorstat_MOVED", "count=0").split("=")[1]) for node in nodes)
    assert 2 < refused < 100


def test_no_server(start_server: Any) -> None:
    server = start_server()
    server.kill()
    with redislock.Locks(redis.Redis(port=server.port)) as locks:
        began = time.monotonic()
        with pytest.raises(redis.exceptions.ConnectionError), locks.lock("k", wait=0):
            pass
        assert time.monotonic() - began < 20


def test_a_password_a_database_and_a_name(start_server: Any) -> None:
    server = start_server()
    server.admin("CONFIG", "SET", "requirepass", "secret")
    client = redis.Redis(port=server.port, password="secret", db=3, client_name="shop")
    with client, redislock.Locks(client) as locks, locks.lock("k", wait=5):
        assert client.exists("k") == 1
        assert {each["name"] for each in client.client_list()} == {"shop", ""}
    with redislock.Locks(redis.Redis(port=server.port, password="wrong")) as locks:
        with pytest.raises(redis.exceptions.ResponseError, match="WRONGPASS"), locks.lock("k", wait=1):
            pass
    client = redis.Redis(port=server.port, password="secret")
    with client:
        client.acl_setuser("ann", enabled=True, passwords=["+word"], keys=["*"], commands=["+@all", "-client|tracking"])
        told: list[str] = []
        other = redis.Redis(port=server.port, username="ann", password="word")
        with redislock.Locks(other, lease=3) as locks:
            client.config_resetstat()
            hold = locks.lock("k").acquire()
            hold.on_lost(told.append)
            eventually(lambda: "cmdstat_lock.fence" in str(client.info("commandstats")).lower(), "it asks once, soon")
            client.delete("k")
            eventually(lambda: told == ["renewal"], "without pushes a renewal tells")
            with locks.lock("k").acquire(), pytest.raises(redislock.LockTimeoutError), locks.lock("k", wait=0.3):
                pass


def test_a_user_without_a_password_logs_in_as_itself(start_server: Any) -> None:
    server = start_server()
    server.admin("ACL", "SETUSER", "ann", "ON", "NOPASS", "~*", "&*", "+@all")
    with redis.Redis(port=server.port, username="ann") as client, redislock.Locks(client) as locks:
        with locks.lock("k").acquire(), pytest.raises(redislock.LockTimeoutError), locks.lock("k", wait=0.3):
            pass  # over both kinds of connections
        users = {each["user"] for each in client.client_list() if each["name"] == "redislock"}
        assert users == {"ann"} and client.acl_whoami() == "ann"


def test_a_login_that_is_refused_is_an_error_of_this_library(start_server: Any) -> None:
    server = start_server()
    server.admin("CONFIG", "SET", "requirepass", "secret")
    with redislock.Locks(redis.Redis(port=server.port, password="wrong")) as locks:
        for ask in (lambda: locks.check_token("k", 5), lambda: locks.lock("k", wait=0).acquire()):
            with pytest.raises(redislock.ServerRefusedError, match="WRONGPASS"):
                ask()


def test_a_socket_of_the_machine(start_server: Any, tmp_path: Any) -> None:
    start_server("--unixsocket", tmp_path / "s")
    with redislock.Locks(redis.Redis(unix_socket_path=str(tmp_path / "s"))) as locks:
        hold = locks.lock("k", wait=5).acquire()
        with pytest.raises(redislock.LockTimeoutError), locks.lock("k", wait=0.1):
            pass
        hold.release()


def test_a_wait_longer_than_the_servers_max_wait(start_server: Any) -> None:
    server = start_server(module_arguments=("max-wait", 300))
    with redislock.Locks(redis.Redis(port=server.port)) as locks, locks.lock("k").acquire():
        server.admin("CONFIG", "RESETSTAT")
        for waits in (locks.lock("k", wait=1), locks.many(["k", "j"], wait=1)):
            began = time.monotonic()
            with pytest.raises(redislock.LockTimeoutError), waits:
                pass
            assert time.monotonic() - began >= 1
    calls = sum(
        int(line.split("calls=")[1].split(",")[0]) for line in server.info("commandstats").values() if "calls=" in line
    )
    assert calls < 60, "it asked again and again"


def test_a_server_that_refuses_to_raise_its_token_says_why(start_server: Any) -> None:
    doors = [Meddler(start_server().port) for _ in range(3)]
    clients = [redis.Redis(port=door.port) for door in doors]
    said = b"-ERR RAISE must be an integer from 1 to 5 (redislock.some-setting)\r\n"
    for door in doors:
        original = door._reply

        def reply(link: Any, frame: bytes, original: Any = original) -> None:
            is_raise = not frame.startswith(b">") and link.open_calls and "RAISE" in link.open_calls[0].words
            original(link, said if is_raise else frame)

        door._reply = reply
    for wait in (0, 2, None):
        with Redlock(clients, lease=3) as locks, pytest.raises(redislock.ServerRefusedError, match="some-setting"):
            locks.lock("k", wait=wait).acquire()
    for client, door in zip(clients, doors, strict=True):
        client.close()
        door.close()
