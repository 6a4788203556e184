"""A replica that loads its primary's data set beside its own (repl-diskless-load swapdb).

With the same history (replication id) readers are served from the old data meanwhile; with another one clients are
told -LOADING. Either way the old data set is still there until the new one is complete, and stays if that fails.
"""

import pytest

from harness.limits import eventually
from harness.payload import dump
from harness.proxy import Proxy
from harness.replicas import AT_ONCE, is_linked
from harness.replies import as_map, holder, lock_info, module_info
from harness.server import IS_VALKEY, RELEASE
from harness.wire import ServerError, refused

LONG = "PX 600000"

#: The module does not ask for it on Redis before 7.4: that does not say in which database a key is. Nor does it on 8.0,
#: which ends itself when the link breaks while it reads a value of a module.
IS_LEFT_ALONE = not IS_VALKEY and (RELEASE < (7, 4) or (8, 0) <= RELEASE < (8, 6))

#: Written one after the other while the replica reads: the load takes this many times the delay.
FILLERS = 250
SLOWLY_US = 10_000

#: The locks that the old or the new data set has.
KEYS = ("door", "old-only", "new-only", "room", "old-pool", "new-pool", "twice", "n" * 300, "many-7", "none")

PRIMARY = (
    *AT_ONCE,
    *("--repl-diskless-sync", "yes", "--repl-backlog-size", "16kb", "--rdbcompression", "no"),
)
REPLICA = (
    *("--repl-diskless-load", "swapdb", "--loading-process-events-interval-bytes", "1024"),
    *("--rdbcompression", "no", "--lua-time-limit", "5000"),
)


def fill(cli):
    """Makes a data set that takes its time."""
    cli.pipeline(*(f"SET filler-{number} {'x' * 5000}" for number in range(FILLERS)))


def offset_of(server):
    return int(server.info("replication")["master_repl_offset"])


class Scene:
    """A replica that has old locks, and a primary that has other ones, with a network between them."""

    def __init__(self, start_server, same, *options, first_use=False, primary=()):
        self.same = same
        self.primary = start_server(*PRIMARY, *primary)
        self.replica = start_server(*REPLICA, *options)
        self.net = Proxy(self.primary.port)
        self.there, self.here = self.primary.connect(), self.replica.connect()
        fill(self.there)
        if same:
            self.follow()
            self.await_linked()
        self.tokens = {}
        if not first_use:
            self.take(self.there if same else self.here, "old")
            if same:
                self.await_caught_up()
        self.net.cut()
        self.old = self.state()

    def follow(self):
        self.here("REPLICAOF", "127.0.0.1", self.net.port)

    def take(self, cli, who):
        """Takes locks of all kinds: some under the same names for any owner, some not."""
        take = [
            ("door", f"{who}-ann {LONG}"),
            (f"{who}-only", f"{who}-bob {LONG}"),
            ("room", f"{who}-cat {LONG} SHARED"),
            ("room", f"{who}-dan {LONG} SHARED"),
            (f"{who}-pool", f"{who}-eve {LONG} LIMIT 3"),
            (f"{who}-pool", f"{who}-fay {LONG} LIMIT 3"),
            ("twice", f"{who}-gus {LONG} REENTRANT"),
            ("twice", f"{who}-gus {LONG} REENTRANT"),
            ("n" * 300, f"{who}-{'o' * 200} {LONG}"),
        ]
        for number in range(60):
            take.append((f"many-{number}", f"{who}-{number} {LONG}"))
        for key, how in take:
            owner, *rest = how.split()
            token = cli("LOCK.ACQUIRE", key, owner, *rest)
            assert isinstance(token, int), (key, token)
            self.tokens[key, owner] = token

    def change(self):
        """The primary goes on alone: what was held is released or taken away, and others hold it."""
        self.there("FLUSHALL")
        fill(self.there)
        self.take(self.there, "new")
        # More than the backlog has room for: the replica cannot go on where it was.
        self.there("SET", "big", "x" * 100_000)

    def state(self):
        """All that clients can see of the locks here, asked at once: a server that loads answers now and then."""
        asked = ["DEBUG DIGEST", "INFO redislock", "LOCK.HELDBY old-ann", "LOCK.HELDBY new-ann"]
        asked += [f"{command} {key}" for key in KEYS for command in ("LOCK.INFO", "LOCK.FENCE", "TYPE")]
        digest, info, of_old, of_new, *seen = self.here.pipeline(*asked)
        counted = [line for line in info.split() if line.startswith(("redislock_locks:", "redislock_holds:"))]
        told = [self.stable(reply) for reply in seen]
        return digest, counted, len(of_old), len(of_new), told

    @staticmethod
    def stable(reply):
        """The reply without what changes with time alone."""
        if not isinstance(reply, list):
            return reply
        told = as_map(reply)
        holders = [as_map(held) for held in told["holders"]]
        return told["kind"], told["limit"], [[held[part] for part in ("owner", "token", "count")] for held in holders]

    def begin(self):
        """Lets the replica load, slowly, and waits until it does."""
        self.there("CONFIG", "SET", "rdb-key-save-delay", SLOWLY_US)
        self.net.mend()
        if not self.same:
            self.follow()
        field = "async_loading" if self.same else "loading"
        eventually(lambda: self.replica.info("persistence")[field] == "1", field, pause=0.01)

    def loads(self):
        persistence = self.replica.info("persistence")
        return "1" in (persistence["async_loading"], persistence["loading"])

    def await_half(self):
        """Waits until a part of the data set is loaded."""
        eventually(lambda: float(self.replica.info("persistence")["loading_loaded_bytes"]) > 200_000, "half")

    def load_half_of_a_change(self):
        """The replica is in the middle of loading what the primary has instead of the old locks."""
        self.change()
        self.begin()
        self.await_half()

    def complete(self):
        self.there("CONFIG SET rdb-key-save-delay 0")
        self.await_linked()
        self.await_caught_up()

    def abort(self):
        self.net.cut()
        eventually(lambda: not self.loads(), "the load is given up")
        assert not self.is_linked()
        assert "Discarding temporary DB" in self.replica.log_text()

    def is_linked(self):
        return self.replica.info("replication").get("master_link_status") == "up"

    def await_linked(self):
        eventually(self.is_linked, "the link is up", limit=40)

    def await_caught_up(self):
        eventually(lambda: offset_of(self.replica) == offset_of(self.primary), "it has all")

    def await_freed(self):
        """Waits until the threads of the server's have freed what is gone."""
        eventually(lambda: self.replica.info("memory")["lazyfree_pending_objects"] == "0", "freed")

    def assert_agrees(self):
        """The replica has what the primary has, and nothing else."""
        self.await_caught_up()
        assert self.here("DEBUG DIGEST") == self.there("DEBUG DIGEST")
        # What the server freed on a thread of its own is counted a moment longer.
        eventually(lambda: self.counts(self.here) == self.counts(self.there), "it has as many")
        for key in {key for key, _ in self.tokens}:
            assert self.here("LOCK.FENCE", key) == self.there("LOCK.FENCE", key), key

    @staticmethod
    def counts(cli):
        info = module_info(cli)
        return info["locks"], info["holds"]

    def promote(self):
        self.here("REPLICAOF NO ONE")

    def assert_none_is_granted_twice(self, who):
        """What these hold is refused to others, and what others take has later tokens than all before."""
        newest = max([*self.tokens.values(), 0])
        for (key, owner), token in self.tokens.items():
            if not owner.startswith(who):
                continue
            reply = self.here.pipeline(f"LOCK.ACQUIRE {key} thief PX 1000")[0]
            assert reply is None or str(reply).startswith("LOCKKIND"), (key, reply)
            assert self.here("LOCK.RENEW", key, owner, *f"PX 600000 TOKEN {token}".split()), key
        assert self.here("LOCK.ACQUIRE never-seen eve PX 60000") > newest


@pytest.fixture
def scene(start_server):
    if IS_LEFT_ALONE:
        pytest.skip("data is not loaded beside there")
    scenes = []

    def make(*arguments, **named):
        scenes.append(Scene(start_server, *arguments, **named))
        return scenes[-1]

    yield make
    for each in scenes:
        each.net.close()


BOTH = pytest.mark.parametrize("same", [True, False], ids=["same history", "another history"])


@BOTH
@pytest.mark.parametrize("lazily", ["yes", "no"])
def test_what_was_loaded_takes_the_place_of_the_old_locks_as_a_whole(scene, same, lazily):
    # G13
    s = scene(same, "--replica-lazy-flush", lazily)
    s.load_half_of_a_change()
    if same:
        # A client that reads sees the old locks, all of them and no others.
        for _ in range(5):
            assert s.state() == s.old
        assert s.loads()
    else:
        with refused("LOADING"):
            s.here("LOCK.FENCE door")
        assert s.here("DEBUG DIGEST") == s.old[0]
    s.complete()
    s.assert_agrees()
    assert holder(s.here, "door")["owner"] == "new-ann"
    assert lock_info(s.here, "old-only") is None
    s.await_freed()
    # What is freed late takes nothing along.
    s.there("LOCK.ACQUIRE after kim PX 600000")
    s.assert_agrees()
    s.promote()
    s.assert_none_is_granted_twice("new")
    assert isinstance(s.here("LOCK.ACQUIRE old-only kim PX 60000"), int)


@BOTH
def test_a_load_that_fails_leaves_the_old_locks_as_they_were(scene, same):
    # G13
    s = scene(same)
    s.change()
    for _ in range(3):
        s.begin()
        s.await_half()
        s.abort()
        s.await_freed()
        assert s.state() == s.old
    s.promote()
    assert s.state() == s.old
    # G1, G4: also later than all that was loaded and dropped
    s.assert_none_is_granted_twice("old")


@BOTH
def test_after_a_load_that_fails_the_next_one_is_complete(scene, same):
    s = scene(same)
    s.load_half_of_a_change()
    s.abort()
    s.begin()
    s.complete()
    s.assert_agrees()
    s.change()
    s.net.cut()
    s.change()
    s.same = True
    s.begin()
    s.complete()
    s.assert_agrees()
    s.promote()
    s.assert_none_is_granted_twice("new")


@BOTH
def test_a_killed_primary_leaves_its_replica_one_of_the_two_data_sets(scene, same):
    s = scene(same)
    s.load_half_of_a_change()
    swaps = s.replica.log_text().count("Swapping active DB")
    s.primary.kill()
    eventually(lambda: not s.loads(), "the load has ended")
    # The child that sends the data set may go on without its parent, where it has a connection of its own.
    is_complete = s.replica.log_text().count("Swapping active DB") > swaps
    if not is_complete:
        assert s.state() == s.old
    s.promote()
    s.assert_none_is_granted_twice("new" if is_complete else "old")
    s.primary.start()


@BOTH
@pytest.mark.parametrize("ends_well", [True, False], ids=["loaded", "failed"])
def test_a_load_beside_may_be_the_first_use_of_the_module(scene, same, ends_well):
    s = scene(same, first_use=True)
    s.load_half_of_a_change()
    assert module_info(s.here)["locks"] == "0"
    if ends_well:
        s.complete()
        s.assert_agrees()
        s.promote()
        s.assert_none_is_granted_twice("new")
    else:
        s.abort()
        s.await_freed()
        info = module_info(s.here)
        assert (info["locks"], info["holds"]) == ("0", "0")
        s.promote()
        assert s.here("LOCK.ACQUIRE door kim PX 60000") > max(s.tokens.values())


def test_a_stream_goes_on_where_it_was_after_another_data_set_was_dropped(scene, start_server):
    # G13, G4: the replica counts tokens with the stream of its old primary again
    s = scene(True, primary=["--repl-backlog-size", "10mb"])
    # Tokens that are ahead of the wall clock are counted: no record names them.
    token = s.there("LOCK.ACQUIRE counted kim PX 600000")
    assert s.there("LOCK.RENEW", "counted", "kim", "PX", 600_000, "RAISE", token + 60_000_000)
    s.there("LOCK.ACQUIRE named kim PX 600000")
    other = start_server(*PRIMARY)
    cli = other.connect()
    fill(cli)
    cli("LOCK.ACQUIRE door zoe PX 600000")
    cli("CONFIG", "SET", "rdb-key-save-delay", SLOWLY_US)
    s.net.mend()
    s.await_linked()
    s.await_caught_up()
    away = Proxy(other.port)
    try:
        s.here("REPLICAOF", "127.0.0.1", away.port)
        eventually(lambda: s.replica.info("persistence")["loading"] == "1", "it loads", pause=0.01)
        s.await_half()
        away.cut()
        eventually(lambda: not s.loads(), "the load is given up")
    finally:
        away.close()
    for number in range(200):
        s.there("LOCK.ACQUIRE", f"counted-{number}", "kim", "PX", 600_000)
        s.tokens[f"counted-{number}", "kim"] = s.there("LOCK.FENCE", f"counted-{number}")
    before = s.primary.info("stats")["sync_full"]
    s.follow()
    s.await_linked()
    assert s.primary.info("stats")["sync_full"] == before, "it went on where it was"
    s.assert_agrees()


def test_leases_end_while_and_after_another_data_set_is_loaded(scene):
    # G3
    s = scene(True)
    s.net.mend()
    s.await_linked()
    s.there("LOCK.ACQUIRE short kim PX 1500")
    s.there("LOCK.ACQUIRE shorter kim PX 200")
    s.there("LOCK.ACQUIRE shared kim PX 1500 SHARED")
    s.await_caught_up()
    s.net.cut()
    s.change()
    s.begin()
    eventually(lambda: s.here("LOCK.FENCE shorter") is None, "the lease has ended")
    assert s.loads()
    s.abort()
    s.promote()
    for key in ("short", "shared"):
        assert isinstance(s.here("LOCK.ACQUIRE", key, "lea", *"PX 60000 BLOCK 5000".split()), int)
    eventually(lambda: module_info(s.here)["expirations"] >= "2", "both leases have ended")


def test_a_writable_replica_grants_nothing_and_loses_nothing_that_is_loaded(scene):
    s = scene(True, "--replica-read-only", "no")
    payload = dump(s.here, "many-7")
    s.load_half_of_a_change()
    for request in (
        "LOCK.ACQUIRE door kim PX 1000",
        "LOCK.ACQUIRE never-seen kim PX 1000",
        "LOCK.RELEASE door old-ann",
        "LOCK.RENEW door old-ann PX 1000",
        "LOCK.MACQUIRE 2 p q kim PX 1000",
        "LOCK.APPLY door HOLD 5 1000 kim",
        "LOCK.APPLY never-seen HOLD 5 1000 kim",
    ):
        try:
            reply = s.here(request)
        except ServerError:
            continue
        raise AssertionError(f"{request}: {reply}")
    assert s.state() == s.old
    # The server's own commands do what they do anywhere, to the old data.
    s.here("DEL many-1")
    s.here("UNLINK many-2")
    s.here("RENAME many-3 many-4")
    s.here("SET many-5 x")
    s.here("MOVE many-6 1")
    s.here("SWAPDB 0 2")
    s.here("SWAPDB 0 2")
    s.here("DEL many-7")
    s.here("RESTORE", "many-7", 0, payload)
    assert holder(s.here, "many-1") is None
    assert s.loads()
    s.complete()
    s.assert_agrees()
    s.await_freed()
    s.assert_agrees()
    s.promote()
    s.assert_none_is_granted_twice("new")


@pytest.mark.parametrize("ends_well", [True, False], ids=["loaded", "failed"])
def test_a_flush_of_the_old_data_takes_nothing_of_the_new_one_along(scene, ends_well):
    s = scene(True, "--replica-read-only", "no")
    s.load_half_of_a_change()
    s.here("FLUSHALL ASYNC")
    assert s.here.pipeline("DBSIZE", "LOCK.FENCE door", "LOCK.INFO room") == [0, None, None]
    assert s.loads()
    if ends_well:
        s.complete()
        s.assert_agrees()
    else:
        s.abort()
        s.await_freed()
        assert s.here("DBSIZE") == 0
        eventually(lambda: module_info(s.here)["locks"] == "0", "all are freed")


def test_no_memory_is_left_behind(scene):
    s = scene(True)
    used = []
    for number in range(6):
        s.there("FLUSHALL")
        fill(s.there)
        s.there.pipeline(
            *(f"LOCK.ACQUIRE lock-{n} owner-{'o' * 90} PX 600000" for n in range(3_000)),
            *(f"LOCK.ACQUIRE room-{n % 300} owner-{n} PX 600000 SHARED" for n in range(3_000)),
        )
        s.there("SET", "big", "x" * 100_000)
        s.there("CONFIG SET rdb-key-save-delay 300")
        s.net.mend()
        eventually(s.loads, "it loads", pause=0.01)
        if number % 2:
            s.abort()
        else:
            s.complete()
            s.net.cut()
        s.await_freed()
        eventually(lambda: s.replica.info("redislock")["redislock_locks"] == "3300", "all locks")
        used.append(int(s.replica.info("memory")["used_memory"]))
    assert max(used[2:]) < used[0] * 1.2 + 1_000_000, used


def test_a_lock_is_known_by_its_database(start_server):
    # G1, G6, G13
    primary, replica = start_server(*PRIMARY), start_server(*REPLICA)
    there, here = primary.connect(db=1), replica.connect(db=1)
    there(f"LOCK.ACQUIRE door ann {LONG}")
    there(f"LOCK.ACQUIRE room cat {LONG} SHARED")
    there("LOCK.ACQUIRE window bob PX 1000")
    replica.admin(f"LOCK.ACQUIRE old bob {LONG}")
    replica.admin("REPLICAOF", "127.0.0.1", primary.port)
    is_linked(replica)
    primary.admin(f"LOCK.ACQUIRE other ann {LONG}")
    primary.admin("FLUSHDB")
    eventually(lambda: offset_of(replica) == offset_of(primary), "it has all")
    replica.admin("REPLICAOF NO ONE")
    assert here(f"LOCK.ACQUIRE door eve {LONG}") is None
    assert here(f"LOCK.ACQUIRE room eve {LONG}") is None
    assert replica.ask(f"LOCK.ACQUIRE window eve {LONG} BLOCK 0", db=1).answer() > 0


@pytest.mark.skipif(not IS_LEFT_ALONE, reason="data is loaded beside there")
def test_a_file_is_loaded_where_no_data_set_can_be_loaded_beside(start_server):
    primary, replica = start_server(*PRIMARY), start_server(*REPLICA)
    token = primary.admin(f"LOCK.ACQUIRE door ann {LONG}")
    replica.admin(f"LOCK.ACQUIRE old bob {LONG}")
    replica.admin("REPLICAOF", "127.0.0.1", primary.port)
    is_linked(replica)
    assert (replica.admin("LOCK.FENCE door"), replica.admin("LOCK.FENCE old")) == (token, None)
    assert "Skipping diskless-load" in replica.log_text()
