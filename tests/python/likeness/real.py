"""Plays the steps on a real server whose clocks are paused between them."""

import binascii
import math
import struct
import time

from harness.limits import SOON_SECONDS
from harness.preloaded import built
from harness.server import ROOT, Server, parse_info
from harness.wire import Closed, Connection, ServerError, encode

from .follower import Follower
from .script import CLIENTS, DBS, NAMES
from .told import Names, flat, payload_text

SOURCE = ROOT / "tests" / "server" / "stopped_clock.c"
#: When the wall clock of a simulated server begins.
BEGAN_US = 1_700_000_000_000_000
#: The time that passes at once, and the number of our commands until all work is done.
STEP_MS, TURNS = 2, 6
#: The number of these until a replica has its snapshot.
SYNC_STEPS = 10
OPTIONS = """--hz 500 --appendonly yes --appendfsync no --notify-keyspace-events KA
    --repl-diskless-sync no --rdbcompression no --lazyfree-lazy-expire no --lazyfree-lazy-server-del no
    --lazyfree-lazy-user-del no --lua-time-limit 0"""
CLUSTER = "--cluster-enabled yes --cluster-require-full-coverage no --cluster-node-timeout 100000000"
#: A node takes this time and these turns until it answers for its slots: each 50th turn checks the cluster.
JOINS_US, JOIN_TURNS = 6_000_000, 120
#: The nodes of a cluster: the server, and one that is never reached.
OURS, THEIRS = "a" * 40, "b" * 40
FIELDS = """role locks holds waiters grants contended_grants releases expirations broken timeouts deadlocks fenced
    wait_ms_histogram hold_ms_histogram last_token""".split()


def nodes(server):
    """The saved state of a node of a cluster that has all slots."""
    return (
        f"{OURS} 127.0.0.1:{server.port}@{server.bus} myself,master - 0 0 1 connected 0-16383\n"
        f"{THEIRS} 127.0.0.1:9@9 master - 0 0 2 connected\nvars currentEpoch 2 lastVoteEpoch 0\n"
    )


def slot_of(name):
    """The hash slot of a key."""
    return binascii.crc_hqx(name.encode(), 0) % 16_384


def build(directory):
    """Compiles the library that stops the clocks; returns its path."""
    return built(SOURCE, directory)


class Client:
    """A connection, and how many replies it waits for."""

    def __init__(self, server, number, db):
        self.number, self.db, self.open = number, db, []
        self.connection = server.connect(protocol=3, db=db)
        self.connection("AUTH", f"u{number}", "x")
        self.id = self.connection("CLIENT ID")


class Real:
    """One round on a new server."""

    def __init__(self, library, directory, number, is_cluster=False):
        clock = directory / f"clock-{number}"
        self.passed_us, self.dbs = 0, DBS[:1] if is_cluster else DBS
        clock.write_bytes(struct.pack("=qq", BEGAN_US - (JOINS_US if is_cluster else 0), 0))
        self.clock = clock.open("r+b", buffering=0)
        options = [*OPTIONS.split(), *((*CLUSTER.split(),) if is_cluster else ("--databases", len(DBS)))]
        self.server = Server(*options, environment={"LD_PRELOAD": str(library), "STOPPED_CLOCK_FILE": str(clock)})
        if is_cluster:
            (self.server.directory / "nodes.conf").write_text(nodes(self.server))
        self.server.start()
        self.admin, self.eye = self.connect(), self.connect(3)
        if is_cluster:
            self.joins()
        self.admin("DEBUG SET-ACTIVE-EXPIRE 0")
        for client in range(CLIENTS):
            self.admin("ACL", "SETUSER", f"u{client}", "on", "nopass", "+@all", "~*", "&*")
        self.subscriber, self.tracker = self.connect(), self.connect(3)
        self.subscriber("PSUBSCRIBE __keyspace@*")
        self.tracker("CLIENT TRACKING ON BCAST")
        directory = self.server.directory / "appendonlydir"
        self.file = (directory / "appendonly.aof.1.incr.aof").open("rb")
        self.filed, self.streamed = Reader("file"), Reader("stream")
        self.follower, self.paused_until_us = None, -1
        self.clients, self.ids, self.dumps, self.lines = {}, {}, {}, []
        self.names = Names()
        self.places = {}

    def connect(self, protocol=2):
        return Connection(self.server.port, protocol)

    def ends(self):
        """Ends the server."""
        self.server.close_connections()
        for connection in (self.admin, self.eye, self.subscriber, self.tracker):
            connection.close()
        self.file.close()
        if self.follower:
            self.follower.close()
        self.clock.close()
        self.server.finish()

    def plays(self, steps):
        """(step, lines) for each of them."""
        for step in steps:
            words = step.split("\t")
            if words[0] != "round":
                getattr(self, words[0].replace("-", "_"))(*words[1:])
                self.rests()
                self.passes()
            yield step, self.tells()

    # Time

    def passes(self):
        """A little time, in which the server's cron comes by."""
        self.goes_on(STEP_MS * 1000)
        self.looks_for_keys()
        self.rests()

    def joins(self):
        """A node of a cluster answers for its slots when it has run for a while."""
        for _ in range(JOIN_TURNS):
            self.goes_on(JOINS_US // JOIN_TURNS)
            self.admin("PING")
        if "cluster_state:ok" not in self.admin("CLUSTER INFO"):
            self.server.finish()
            raise AssertionError("a node of a cluster does not answer for its slots")

    def goes_on(self, micros):
        self.passed_us += micros
        self.clock.seek(8)
        self.clock.write(struct.pack("=q", self.passed_us))

    def looks_for_keys(self, *commands):
        """After these commands, in one packet: an expired key is removed when a client looks for it."""
        for db in self.dbs:
            commands += (("SELECT", db), *(("EXISTS", name) for name in NAMES))
        self.admin.pipeline(*commands)

    def rests(self):
        """Lets all work of this moment be done."""
        for _ in range(TURNS):
            self.admin("PING")
        self.takes()

    def takes(self):
        """Takes the replies to clients."""
        for client in list(self.clients.values()):
            try:
                while client.connection.has_input():
                    words = client.open.pop(0) if client.open else ()
                    reply = client.connection.read_any()
                    if words[:1] == ["DUMP"]:
                        reply = self.dumped(words, reply)
                    self.lines.append("\t".join(["reply", f"c{client.number}", *flat(reply, self.ids)]))
            except Closed:
                self.gone(client)

    def dumped(self, words, reply):
        if not isinstance(reply, str):
            return reply
        payload = reply.encode("utf-8", "surrogateescape")
        if words[-1].startswith("@slot:"):
            self.dumps[words[-1][6:]] = payload
        return payload_text(payload)

    def gone(self, client):
        client.connection.close()
        self.clients.pop(client.number, None)

    # Steps

    def client(self, number, db):
        if number not in self.clients:
            client = self.clients[number] = Client(self.server, number, db)
            self.ids[client.id] = f"c{number}"
        return self.clients[number]

    def send(self, number, db, *words):
        client = self.client(int(number), int(db))
        # Valkey 9 finds out later than others that a key of a transaction is not there.
        has_left = words[0] == "MULTI" and "ASK" in self.places.values()
        if client.open or has_left:
            self.lines.append("busy")
            return
        commands, packet = [[]], b""
        for word in words:
            if word == ";;":
                commands.append([])
            else:
                commands[-1].append(word)
        for command in commands:
            if resolved := self.resolved(client.db, command):
                packet += encode(*resolved)
                client.open.append(command)
        client.connection.send_bytes(packet)
        if words[:2] == ("CLIENT", "PAUSE"):
            self.paused_until_us = self.passed_us + 1000 * int(words[2])
        if any(word.startswith("FLUSH") for word in words):
            self.waits_for_flush(client)

    def waits_for_flush(self, client):
        """A newer server frees the data of a flush on a thread, and answers after it."""
        self.waits_for_threads(lambda: not any(command[0].startswith("FLUSH") for command in client.open))

    def waits_for_threads(self, is_answered=lambda: True):
        """The server's own threads free the values that were left to them."""
        deadline = time.monotonic() + SOON_SECONDS
        is_open = True
        while is_open and time.monotonic() < deadline:
            memory = parse_info(self.admin("INFO memory"))
            self.takes()
            is_open = memory["lazyfree_pending_objects"] != "0" or not is_answered()

    def resolved(self, db, command):
        words = []
        for word in command:
            what, _, of = word[1:].partition(":") if word.startswith("@") else ("", "", "")
            if what == "slot":
                continue
            if what == "dump":
                word = self.dumps.get(of)
                if word is None:
                    return None
            elif what:
                word = self.known(db, what, of)
            words.append(word)
        return words

    def known(self, db, what, name):
        info = self.places.get((db, name))
        info = info if isinstance(info, dict) else {"holders": [], "queue": []}
        if what == "waiter":
            return info["queue"][-1]["owner"] if info["queue"] else "o1"
        first = info["holders"][0] if info["holders"] else {"token": 1, "owner": "o0"}
        # A string that is a lock has no token.
        return first[{"token": "token", "holder": "owner"}[what]] or 1

    def close(self, number):
        if client := self.clients.get(int(number)):
            self.gone(client)

    def kill(self, number):
        if client := self.clients.get(int(number)):
            self.admin("CLIENT", "KILL", "ID", client.id)
            self.gone(client)

    def unblock(self, number, how="TIMEOUT"):
        # Redis 7.0 ends itself if one that CLIENT PAUSE holds up is unblocked, with no module too.
        client = self.clients.get(int(number))
        if client and client.open and self.passed_us > self.paused_until_us:
            self.admin("CLIENT", "UNBLOCK", client.id, how)

    def unblock_error(self, number):
        client = self.clients.get(int(number))
        # Redis 7.0 reads this client's other commands later than others do.
        if client and not (self.follower and len(client.open) > 1):
            self.unblock(number, "ERROR")

    def __getattr__(self, name):
        if name == "pass":
            return self.lets_pass
        raise AttributeError(name)

    def lets_pass(self, ms):
        for _ in range(int(ms) // STEP_MS):
            self.passes()

    def forbid(self, number):
        self.admin("ACL", "SETUSER", f"u{number}", "-lock.acquire", "-lock.macquire")

    def allow(self):
        for client in range(CLIENTS):
            self.admin("ACL", "SETUSER", f"u{client}", "+lock.acquire", "+lock.macquire")

    def set(self, name, value):
        self.admin("CONFIG", "SET", f"redislock.{name}", value)

    def unpause(self):
        self.paused_until_us = -1
        self.looks_for_keys("CLIENT UNPAUSE")

    def failover(self):
        """The replica has not acknowledged the last writes, so writers wait until one side gives up."""
        assert self.admin.pipeline("SELECT 0", "SET x last", "FAILOVER") == ["OK"] * 3
        self.paused_until_us = math.inf

    def failover_abort(self):
        self.paused_until_us = -1
        self.looks_for_keys("FAILOVER ABORT")

    def slot(self, name, what):
        """The slot of this key begins to leave, is another node's, or is ours."""
        number = slot_of(name)
        ours, theirs = f"CLUSTER SETSLOT {number} NODE {OURS}", f"CLUSTER SETSLOT {number} NODE {THEIRS}"
        leaves, stays = f"CLUSTER SETSLOT {number} MIGRATING {THEIRS}", f"CLUSTER SETSLOT {number} STABLE"
        self.looks_for_keys(*{"leaves": [leaves], "left": [theirs], "ours": [stays, ours]}[what])

    def demote(self):
        # No server answers at the port of discarded packets.
        self.admin("REPLICAOF", "127.0.0.1", "9")

    def promote(self):
        self.looks_for_keys("REPLICAOF NO ONE")

    def reload(self):
        self.admin("DEBUG RELOAD")

    def load_file(self):
        self.admin("DEBUG LOADAOF")
        # There may be FLUSHDB ASYNC in it.
        self.waits_for_threads()

    def attach(self):
        """A replica comes, and confirms from here on."""
        self.follower = Follower(self.server, lambda: self.lets_pass(STEP_MS * SYNC_STEPS))
        pairs = ("confirm", "all", "group-size", 2, "quarantine", 60_000, "confirm-timeout", 51)
        words = [f"redislock.{word}" if at % 2 == 0 else word for at, word in enumerate(pairs)]
        self.admin("CONFIG", "SET", *words)

    def ack(self):
        if self.follower:
            self.takes_stream()
            self.follower.acknowledges()

    def takes_stream(self):
        self.lines += self.streamed.lines(self.follower.told())

    # What is seen

    def tells(self):
        """The outcome of the last step, and the current state."""
        if self.follower:
            self.takes_stream()
        lines, self.lines = self.lines, []
        lines += [f"event\t{event}" for event in self.heard()]
        lines += self.filed.lines(self.file.read())
        self.tracker("PING")
        changed = {key for push in self.tracker.pushes for key in (push[1] or ["*"]) if push[0] == "invalidate"}
        self.tracker.pushes.clear()
        lines += [f"changed\t{key}" for key in changed]
        lines += self.looks()
        return [self.names.plain(line) for line in lines]

    def heard(self):
        while self.subscriber.has_input():
            *_, channel, event = self.subscriber.read_any()
            db, _, name = channel.removeprefix("__keyspace@").partition("__:")
            yield f"{db}\t{name}\t{event}"

    def looks(self):
        commands = []
        for db in self.dbs:
            commands.append(("SELECT", db))
            for name in NAMES:
                commands += [("TYPE", name), ("PTTL", name), ("LOCK.INFO", name, "FULL")]
        replies = iter(self.eye.pipeline(*commands, ("INFO", "redislock")))
        lines = []
        for db in self.dbs:
            next(replies)
            for name in NAMES:
                kind, ttl, info = next(replies), next(replies), next(replies)
                if isinstance(kind, ServerError):
                    # Another node answers for it.
                    kind, ttl, info = f"-{kind.code}", -1, None
                self.places[db, name] = "ASK" if kind == "-ASK" else info
                lines.append("\t".join(["place", str(db), name, kind, str(ttl), *flat(info, self.ids)]))
        fields = {name.removeprefix("redislock_"): text for name, text in parse_info(next(replies)).items()}
        return lines + [f"info\t{name}\t{fields[name]}" for name in FIELDS]


#: Records whose version is at this place; the simulated server leaves it out, as the engine does.
VERSIONED = {b"LOCK.APPLY": 2, b"LOCK.TICK": 1}


class Reader:
    """Reads commands that a server has written, to a file or to a replica."""

    def __init__(self, kind):
        self.kind, self.unread, self.db = kind, b"", "0"

    def lines(self, data):
        """The commands written: a line each."""
        self.unread += data
        found = []
        while self.unread:
            words, self.unread = command_of(self.unread)
            if words[0] in (b"PING", b"REPLCONF"):
                continue
            if words[0] == b"SELECT":
                self.db = words[1].decode()
                continue
            if words[0] == b"RESTORE":
                words[3] = payload_text(words[3]).encode()
            if words[0] in VERSIONED:
                assert words.pop(VERSIONED[words[0]]) == b"1", words
            db = "-" if words[0] in (b"MULTI", b"EXEC") else self.db
            found.append("\t".join([self.kind, db, *(word.decode("utf-8", "surrogateescape") for word in words)]))
        return found


def command_of(data):
    """The first command of a file, and the rest."""
    if data.startswith(b"#"):
        return command_of(data.partition(b"\n")[2])
    head, _, rest = data.partition(b"\r\n")
    words = []
    for _ in range(int(head[1:])):
        size, _, rest = rest.partition(b"\r\n")
        size = int(size[1:])
        words.append(rest[:size])
        rest = rest[size + 2 :]
    words[0] = words[0].upper()
    return words, rest
