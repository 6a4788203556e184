"""Plays the steps: several connections, one step at a time."""

import time
from dataclasses import dataclass

from checkers.answers import misanswered
from checkers.counts import miscounted, unbalanced
from checkers.events import disordered, overwritten
from checkers.liveness import idle
from checkers.replication import differences
from checkers.view import View
from harness.error_codes import CODES
from harness.kinds import gone
from harness.limits import SLOW_FACTOR, SOON_SECONDS, eventually
from harness.wire import Closed, ServerError, encode

from .script import CLIENTS, SETTINGS, SHORT_MS, Author

#: The time that a client that could be granted may wait once all activity has ended: whatever `hz` is.
BOUND_SECONDS = 0.25 * SLOW_FACTOR
#: The time until all short leases and waits have expired; then the servers must be quiet within QUIET_SECONDS.
SHORT_SECONDS = (max(SHORT_MS) + 15) / 1000
QUIET_SECONDS = 5.0 * SLOW_FACTOR
#: No request is granted while clients are paused, and for a while after it.
PAUSE_SECONDS = 0.1 * SLOW_FACTOR
#: A lease with less left than this is one that was to end.
ENDING_MS = 60_000
#: Published to subscribers between the commands: actions without a keyspace event.
MARKS = "marks"
#: Errors that a random script can meet. It has no cluster, no quarantine, no `confirm` and no users without rights.
KNOWN = CODES - {"MOVED", "TRYAGAIN", "CROSSSLOT", "QUARANTINE", "NOREPLICAS", "NOPERM"} | {"BUSYKEY", "EXECABORT"}


@dataclass(eq=False)
class Request:
    """A command that was sent, and its reply."""

    step: int
    client: int
    db: int
    words: tuple
    reply: object = None
    is_open: bool = True
    #: The slot that keeps the output of a DUMP.
    slot: int = 0

    def __str__(self):
        return f"c{self.client} db {self.db}: {' '.join(map(shown, self.words))}"

    __repr__ = __str__

    @property
    def code(self):
        """The first word of an error."""
        return self.reply.code if isinstance(self.reply, ServerError) else None

    def keys_and_owner(self):
        """The locks that LOCK.ACQUIRE and LOCK.MACQUIRE ask for, and the owner."""
        if self.words[0] == "LOCK.ACQUIRE":
            return {self.words[1]}, self.words[2]
        if self.words[0] == "LOCK.MACQUIRE":
            count = int(self.words[1])
            return set(self.words[2 : 2 + count]), self.words[2 + count]
        return set(), None

    def may_replace(self, older):
        """Returns whether it may have taken over the place of this one."""
        if self.words[0] in ("EVAL", "EXEC"):
            return True
        (keys, owner), (old_keys, old_owner) = self.keys_and_owner(), older.keys_and_owner()
        # The server made the owner of the older one, if it is '*'.
        return old_owner in (owner, "*") and self.db == older.db and bool(keys & old_keys)


class Client:
    """A connection, and its unanswered commands."""

    def __init__(self, server, number, db):
        self.number, self.db, self.open = number, db, []
        self.connection = server.connect(protocol=2 + number % 2, db=db)
        self.id = self.connection("CLIENT ID")

    def drain(self):
        """Takes the bytes that have arrived; False if the server closed the connection."""
        try:
            while self.connection.has_input():
                reply = self.connection.read_any()
                assert self.open, f"a reply that nobody asked for: {reply}"
                request = self.open.pop(0)
                request.reply, request.is_open = reply, False
        except (Closed, OSError):
            return False
        return True

    def close(self):
        """Closes this side; open commands are never answered."""
        self.connection.close()
        self.ends()

    def ends(self):
        """The connection is closed."""
        for request in self.open:
            request.reply, request.is_open = "closed", False
        self.open = []


class Player:
    """Plays one round on a chain of servers, and collects the faults."""

    def __init__(self, chain, seed, tell=lambda line: None):
        self.chain, self.tell = chain, tell
        self.dbs = Author(seed).dbs
        self.clients, self.requests, self.lines, self.faults = {}, [], [], []
        self.dumps, self.number, self.short_until = {}, 0, 0.0
        self.subscriber = self.subscription = None
        self.before = None
        self.paused_until = 0.0
        self.rests = 0

    # A round

    def plays(self, steps):
        """Plays these and stops at the first fault; returns all faults."""
        self.cleans_up()
        self.before = self.quiet_view()
        self.listens()
        for self.number, step in steps:
            try:
                act = getattr(self, step.act.replace("-", "_"))
                act(step)
                self.drains()
                if not self.faults:
                    self.faults += self.idle()
            except AssertionError as failure:
                self.faults.append(f"answers: {type(failure).__name__}: {failure}")
            if self.faults:
                break
        self.closes_all()
        return self.faults

    def note(self, text):
        """Keeps a line about an action."""
        self.lines.append(f"{self.number:3} {text}")
        self.tell(self.lines[-1])

    def admin(self, *words):
        """A command of the player's own on the primary."""
        return self.chain.primary.admin(*words)

    def cleans_up(self):
        """Resets everything: no holds, waiters or places are left, and all settings are as they were."""
        self.admin("CLIENT", "UNPAUSE")
        for name, values in SETTINGS.items():
            self.admin("CONFIG", "SET", f"redislock.{name}", values[-1])
        eye = self.chain.eyes[self.chain.primary]
        for _ in range(10):
            self.admin("FLUSHALL")
            view = eye.view()
            for (db, name), waiter in view.waiters():
                eye.ask(("SELECT", db), ("LOCK.RELEASE", name, waiter["owner"]))
            if not any(view.info[name] for name in ("locks", "holds", "waiters")):
                return
            time.sleep(0.05)
        raise AssertionError(f"a round cannot begin: {view.info}")

    def closes_all(self):
        """Ends all connections of the round."""
        for client in self.clients.values():
            client.close()
        self.clients = {}
        if self.subscriber is not None:
            self.subscriber.close()
            self.subscriber = None

    # Sending

    def client(self, number):
        """This client, connected."""
        if number not in self.clients:
            self.clients[number] = Client(self.chain.primary, number, self.dbs[number])
        return self.clients[number]

    def send(self, step):
        """The next client that is not waiting sends these commands in one packet."""
        free = [self.client((step.client + n) % CLIENTS) for n in range(CLIENTS)]
        free = [client for client in free if not client.open]
        if not free:
            return
        client = free[0]
        sent = []
        for command in step.commands:
            words = self.resolved(client, command)
            if words is None:
                continue
            sent.append(Request(self.number, client.number, client.db, words, slot=slot_of(command)))
            if words[0] in ("FLUSHALL", "FLUSHDB", "SWAPDB"):
                mark = ("PUBLISH", MARKS, " ".join(map(str, words)))
                sent.append(Request(self.number, client.number, client.db, mark))
        self.requests += sent
        client.open += sent
        for request in sent:
            if request.words[:2] == ("CLIENT", "PAUSE"):
                self.paused_until = time.monotonic() + PAUSE_SECONDS
        # Short leases and waits have ended `SHORT_SECONDS` after the last command that may have begun one.
        client.connection.send_bytes(b"".join(encode(*request.words) for request in sent))
        self.comes_to_rest(client)
        for request in client.open:
            self.note(f"{request} (waits)")
        if any(word in SHORT_MS for request in sent for word in request.words):
            self.short_until = time.monotonic() + SHORT_SECONDS

    def comes_to_rest(self, client):
        """Waits until the server has answered all, or has blocked the client."""

        def is_done():
            blocked = self.is_blocked(client)
            return not self.takes(client) or not client.open or blocked

        eventually(is_done, f"an answer to {client.open}", pause=0.0005)

    def is_blocked(self, client):
        """Returns whether the server says so."""
        line = self.admin("CLIENT", "LIST", "ID", client.id)
        fields = dict(field.partition("=")[::2] for field in line.split())
        return "b" in fields.get("flags", "")

    def takes(self, client):
        """Takes the replies to a client; False if it is closed by then."""
        asked = list(client.open)
        if not client.drain():
            client.ends()
            client.connection.close()
            self.clients.pop(client.number, None)
        for request in asked:
            if not request.is_open:
                self.hears(request)
        return client.number in self.clients

    def hears(self, request):
        """Examines a reply."""
        reply, words = request.reply, request.words
        if words[0] != "PUBLISH":
            self.note(f"{request} -> {shown(reply)}")
        if words[0] == "DUMP" and isinstance(reply, str):
            self.dumps[request.slot] = reply.encode("utf-8", "surrogateescape")
        if request.code is not None and request.code not in KNOWN:
            self.faults.append(f"answers: an error that nobody expects: {request} -> {reply.line}")

    def drains(self):
        """Takes the replies to all clients."""
        for client in list(self.clients.values()):
            self.takes(client)

    # Values that are only known now

    def resolved(self, client, command):
        """The command with the values of its '@' words; None if there is no value."""
        words = []
        for word in command:
            if isinstance(word, str) and word.startswith("@"):
                what, _, argument = word[1:].partition(":")
                if what == "slot":
                    continue
                word = self.dumps.get(int(argument)) if what == "dump" else self.known(client, what, argument)
                if word is None:
                    return None
            words.append(word)
        return tuple(words)

    def known(self, client, what, name):
        """A holder, its token or a waiter of a lock: the oldest, as the script was drawn to ask for one of them."""
        view = self.chain.eyes[self.chain.primary].view()
        place = view.places[client.db, name]
        if what == "waiter":
            return place.queue[-1]["owner"] if place.queue else f"o{len(name)}"
        if what == "token":
            return place.holders[0]["token"] if place.holders else 1
        return place.holders[0]["owner"] if place.holders else "o0"

    # Clients that leave

    def waiting(self, step):
        """One of the waiting clients; None if there is none."""
        found = [client for client in self.clients.values() if client.open]
        return found[step.client % len(found)] if found else None

    def leaves(self, client, how):
        """Does this to a client, and waits until the server has done it."""
        if client is None:
            return
        self.note(f"c{client.number} {how}")
        self.short_until = time.monotonic() + SHORT_SECONDS
        if how == "closes":
            client.close()
        elif how == "is killed":
            self.admin("CLIENT", "KILL", "ID", client.id)
        elif client.id not in self.in_queue():
            return  # Redis 7.0 ends itself if one that CLIENT PAUSE holds up is unblocked, with no module too
        else:
            self.admin("CLIENT", "UNBLOCK", client.id, "ERROR" if "error" in how else "TIMEOUT")
            self.comes_to_rest(client)
            return
        gone(self.chain.primary, client.id)
        client.close()
        self.clients.pop(client.number, None)

    def in_queue(self):
        """The clients that wait for a lock."""
        return {waiter["client-id"] for _, waiter in self.chain.eyes[self.chain.primary].view().waiters()}

    def close(self, step):
        self.leaves(self.waiting(step), "closes")

    def drop(self, step):
        seen = self.chain.eyes[self.chain.primary].view()
        tied = {hold["client-id"] for _, hold in seen.holders()}
        found = [client for client in self.clients.values() if client.id in tied]
        self.leaves(found[step.client % len(found)] if found else self.clients.get(step.client), "closes")

    def kill(self, step):
        self.leaves(self.waiting(step), "is killed")

    def unblock(self, step):
        self.leaves(self.waiting(step), "is unblocked")

    def unblock_error(self, step):
        self.leaves(self.waiting(step), "is unblocked with an error")

    # The servers

    def rewrite(self, _step):
        self.note("BGREWRITEAOF")
        try:
            self.admin("BGREWRITEAOF")
        except ServerError as error:
            assert "progress" in error.line, error.line

    def reload(self, step):
        self.survives(step, "DEBUG RELOAD", lambda: self.admin("DEBUG", "RELOAD"))

    def roles(self, step):
        self.survives(step, "the replica becomes the primary", self.chain.changes_roles, ends_connections=True)

    def failover(self, step):
        self.survives(step, "FAILOVER", self.chain.fails_over, ends_connections=True)

    def anew(self, step):
        self.survives(step, "the replicas load all anew", self.chain.loads_anew)

    def survives(self, step, text, what, ends_connections=False):
        """The same holds are there after it; events meanwhile are ignored."""
        self.rest(step)
        if self.faults:
            return
        self.note(text)
        before = self.before
        what()
        if ends_connections:
            self.drains()
            self.closes_all()
            for name, values in SETTINGS.items():
                self.admin("CONFIG", "SET", f"redislock.{name}", values[-1])
        self.short_until = time.monotonic() + SHORT_SECONDS
        after = self.quiet_view()
        # A client that waits before it may be granted by it: only earlier holds are compared.
        kept = View({place: seen for place, seen in after.places.items()}, after.info, after.held_by, after.digest)
        self.faults += [
            f"differs: after {text}: {line}"
            for place, seen in before.places.items()
            for line in differences(seen, kept.places[place], place)
        ]
        self.before = after
        self.listens()

    # Rests

    def listens(self):
        """Receives all events from now on."""
        if self.subscriber is not None:
            self.subscriber.close()
        self.subscriber = self.chain.primary.connect()
        self.subscriber.send("SUBSCRIBE", MARKS)
        self.subscriber.read_any()
        self.subscriber.send("PSUBSCRIBE", "__keyspace@*")
        self.subscriber.read_any()
        self.before = self.quiet_view()
        self.heard()

    def heard(self):
        """The events published until now, as ((db, name), event); (None, event) of all keys."""
        mark = f"rest {time.monotonic_ns()}"
        self.admin("PUBLISH", MARKS, mark)
        found = []
        while True:
            *_, channel, event = self.subscriber.read_any(SOON_SECONDS)
            if channel == MARKS:
                if event == mark:
                    return found
                found.append((None, event))
            else:
                db, _, name = channel.removeprefix("__keyspace@").partition("__:")
                found.append(((int(db), name), event))

    def quiet_view(self):
        """The primary once nothing happens any more."""
        seen = []
        time.sleep(max(0.0, self.short_until - time.monotonic()))
        eye = self.chain.eyes[self.chain.primary]

        def is_quiet():
            seen.append(eye.view())
            return len(seen) > 1 and seen[-1].is_like(seen[-2]) and not is_ending(seen[-1])

        eventually(is_quiet, "the servers come to rest", QUIET_SECONDS, pause=0.002)
        return seen[-1]

    def rest(self, _step):
        """Lets the servers come to rest, and asks all checkers."""
        self.rests += 1
        self.admin("CLIENT", "UNPAUSE")
        self.paused_until = 0.0
        if idle := self.idle():
            self.faults += idle
            return
        after, events, found = self.settled()
        self.faults += found + overwritten(after, events)
        self.faults += self.chain.faults(after)
        self.faults += misanswered(self.requests)
        self.faults += unanswered(self.clients.values(), after)
        if self.faults:
            heard = [f"{place[0]}:{place[1]} {event}" if place else event for place, event in events]
            self.note("published: " + ", ".join(heard))
        self.before = after

    def idle(self):
        """The clients that could be granted and still are not, after a while without other activity."""
        if time.monotonic() < self.paused_until:
            return []
        eye = self.chain.eyes[self.chain.primary]
        most = int(eye.ask(("CONFIG", "GET", "redislock.max-holders"))[0]["redislock.max-holders"])
        deadline = time.monotonic() + BOUND_SECONDS
        while (found := idle(eye.view(), most)) and time.monotonic() < deadline:
            time.sleep(0.005)
        return found

    def settled(self):
        """The quiet state, the events published until then, and the lasting faults."""
        deadline, events = time.monotonic() + BOUND_SECONDS + SHORT_SECONDS, []
        while True:
            after = self.quiet_view()
            self.drains()
            events += self.heard()
            found = disordered(self.before, after, events) + unbalanced(self.before, after, events)
            found += miscounted(after)  # what a flush has ended the server frees on a thread of its own
            if not found or time.monotonic() > deadline:
                return after, events, found
            time.sleep(0.01)

    def copies(self, step):
        """A rest, and servers that load the primary's files."""
        self.rest(step)
        if not self.faults:
            self.note("servers load its files")
            self.faults += self.chain.faults_of_files(self.before)


def slot_of(command):
    """The slot that a DUMP names."""
    last = str(command[-1])
    return int(last.removeprefix("@slot:")) if last.startswith("@slot:") else 0


def is_ending(view):
    """Returns whether anything is about to expire."""
    holds = any(hold["lease-left-ms"] < ENDING_MS and not hold["keepalive"] for _, hold in view.holders())
    return holds or any(0 <= place.ttl < ENDING_MS for place in view.places.values())


def unanswered(clients, view):
    """G7: clients without an answer that are in no line, on a quiet server."""
    waiting = {waiter["client-id"] for _, waiter in view.waiters()}
    forgotten = [client for client in clients if client.open and client.id not in waiting]
    return [f"answers: never answered: {client.open[0]}" for client in forgotten]


def shown(word):
    """A word or a reply as one types it, or sees it."""
    if isinstance(word, ServerError):
        return f"({word.line})"
    if isinstance(word, bytes):
        return '"' + "".join(f"\\x{byte:02x}" for byte in word) + '"'
    if isinstance(word, str) and (not word or not word.isprintable() or set(word) & set(" \"'")):
        data = word.encode("utf-8", "surrogateescape")
        plain = (f"\\x{byte:02x}" if byte < 32 or byte > 126 or byte in b'"\\' else chr(byte) for byte in data)
        return '"' + "".join(plain) + '"'
    return str(word)
