"""Clients that use locks of all kinds at random, and record the replies.

Each turn of a client is a new owner, whose requests follow one another, except where two at once are the point. Its
record is judged by `checkers`.
"""

import random
import time
from math import inf

from checkers.evidence import EXCLUSIVE, LOST, SHARED, UNANSWERED, Request, Seen

from .corners import Corners, Resource
from .replies import as_map
from .together import run_together
from .wire import Connection, NoReply, ServerError

#: The usual modes of each lock. All who use one must agree, so few requests try another way.
KINDS = {
    "door": [EXCLUSIVE],
    "gate": [EXCLUSIVE, SHARED],
    "hatch": [EXCLUSIVE, EXCLUSIVE, SHARED],
    "book": [EXCLUSIVE, SHARED, SHARED, SHARED],
    "page": [EXCLUSIVE, SHARED],
    "pool": ["limit 3"],
    "slot": ["limit 2"],
    "odd": [EXCLUSIVE, SHARED, "limit 2", "limit 3"],
}
MODES = [EXCLUSIVE, SHARED, "limit 2", "limit 3"]
MIXED = ["door", "gate", "hatch", "book", "page"]
LEASES_MS = [5, 5, 20, 20, 20, 50, 50, 200]
WAITS_MS = [None, None, None, 1, 5, 20, 100, 400, 0]
REPLY_SECONDS = 60


def run_clients(port, seed, clients, seconds, patience=REPLY_SECONDS):
    """Several clients at once, each in a thread; returns the histories of all of them."""
    histories = [[] for _ in range(clients)]
    resource = Resource(f"resource {seed}")

    def run(_, name):
        MixedClient(port, name, histories, resource, patience).run_for(seconds)

    failures = run_together(seed, clients, run, seconds + 2 * patience)
    return [request for history in histories for request in history], failures


class MixedClient(Corners):
    """One client and one connection at a time."""

    def __init__(self, port, name, histories, resource, patience=REPLY_SECONDS):
        self.port, self.name = port, name
        self.history = histories[int(name.rpartition(".")[2])]
        self.histories = histories
        self.resource, self.patience = resource, patience
        self.chance = random.Random(name)
        self.connections = 0
        self.owner = name
        self.held = {}  # lock: (token, mode, lease in ms)
        self.kept = False
        self.open()

    def run_for(self, seconds):
        """Takes turns until the time has passed."""
        turns = [self.hold, self.hold_several, self.keep_a_place, self.vanish]
        turns += [self.withdraw, self.ask_twice, self.watch, self.delete, self.bell, self.knot, self.queue_up]
        end = time.monotonic() + seconds
        turn = 0
        while time.monotonic() < end:
            turn += 1
            self.owner, self.held, self.kept = f"{self.name}.{turn}", {}, False
            self.chance.choices(turns, [60, 14, 8, 4, 4, 4, 10, 2, 2, 1, 2])[0]()
            self.leave_locks()
        self.close()

    # The connection

    def open(self):
        """A new connection."""
        self.connections += 1
        self.line = f"{self.name}/{self.connections}"
        self.connection = Connection(self.port)

    def close(self):
        """Closes it, which is an event for holds that are tied to it."""
        sent = time.monotonic()
        self.connection.close()
        self.history.append(
            Request("close", (), self.owner, sent, time.monotonic(), connection=self.line)
        )

    def reconnect(self):
        """Loses the connection and comes back."""
        self.close()
        self.open()

    # One request

    def ask(self, command, words, *keys, **known):
        """Sends a command, and records the reply."""
        known["connection"] = self.line
        request = Request(command, keys, self.owner, time.monotonic(), 0, **known)
        self.connection.send(*words)
        return self.note(request, self.connection)

    def note(self, request, connection):
        """Reads the reply to a request, and writes both down."""
        try:
            reply = connection.read_any(self.patience)
        except NoReply:
            self.history.append(request._replace(answered=inf, error=UNANSWERED))
            raise
        request = request._replace(answered=time.monotonic())
        if isinstance(reply, ServerError):
            request = request._replace(error=reply.line)
        elif request.is_acquire and isinstance(reply, list):
            request = request._replace(owner=reply[0], reply=reply[1])
        elif request.command == "info":
            request = request._replace(reply=seen_in(reply))
        elif request.command == "heldby":
            request = request._replace(reply=[tuple(row[:4]) for row in reply])
        else:
            request = request._replace(reply=reply)
        self.history.append(request)
        return request

    def draw(self, keys, command="acquire", **wanted):
        """A random request for locks, not sent yet: (words, request)."""
        chance = self.chance
        lease, block = chance.choice(LEASES_MS), chance.choice(WAITS_MS)
        lease, block = wanted.pop("lease", lease), wanted.pop("block", block)
        known = {"mode": chance.choice(KINDS.get(keys[0], [EXCLUSIVE])), "owner": self.owner}
        if chance.random() < 0.02:
            known["mode"] = chance.choice(MODES)
        if command == "acquire":
            known["reentrant"] = chance.random() < 0.2
            if chance.random() < 0.15:
                known["ephemeral"] = chance.choice([0, 5, 30]) / 1000
            known["keepalive"] = chance.random() < 0.1
        else:
            known["mode"] = chance.choice([EXCLUSIVE, SHARED])
        known.update(wanted)
        if known["mode"] != EXCLUSIVE:
            known.pop("reentrant", None)
        request = Request(
            command, tuple(keys), sent=0, answered=0, connection=self.line, lease=lease / 1000,
            block=None if block is None else block / 1000 or inf, **known,
        )  # fmt: skip
        return words_of(request), request

    def take(self, keys, command="acquire", **wanted):
        """Asks for locks; returns whether they are held."""
        words, request = self.draw(keys, command, **wanted)
        request = request._replace(sent=time.monotonic())
        self.connection.send(*words)
        return self.took(request, self.connection)

    def took(self, request, connection):
        """Reads the reply to a request for locks, and keeps the grant."""
        request = self.note(request, connection)
        if request.is_granted:
            self.owner = request.owner
            for key in request.keys:
                self.held[key] = (request.reply, request.mode, round(request.lease * 1000))
            self.kept |= request.keepalive
        return request.is_granted

    # Turns

    def hold(self):
        """One lock, and the actions of a holder."""
        wanted = {"owner": "*"} if self.chance.random() < 0.05 else {}
        if self.take([self.chance.choice(list(KINDS))], **wanted):
            self.work()

    def hold_several(self):
        """Several locks in one step."""
        keys = self.chance.sample(MIXED, self.chance.randint(1, 3))
        if self.take(keys, "macquire"):
            if self.chance.random() < 0.1:
                self.take(keys, "macquire", mode=self.held[keys[0]][1], block=None)
            self.work()

    def keep_a_place(self):
        """Asks again and again without waiting."""
        key = self.chance.choice(list(KINDS))
        mode, place = self.chance.choice(KINDS[key]), self.chance.choice([5, 30, 100]) / 1000
        for _ in range(self.chance.randint(1, 10)):
            if self.take([key], mode=mode, place=place, block=None, reentrant=False):
                self.work()
                return
            time.sleep(self.chance.random() * place)
        if self.chance.random() < 0.5:
            self.release(key)

    def vanish(self):
        """Asks, and leaves without reading the answer. Proves no hold."""
        several = self.chance.random() < 0.3
        keys = self.chance.sample(MIXED, 2) if several else [self.chance.choice(list(KINDS))]
        words, request = self.draw(keys, "macquire" if several else "acquire", lease=20, block=0)
        other = Connection(self.port)
        request = request._replace(sent=time.monotonic(), answered=inf, error=LOST)
        other.send(*words)
        time.sleep(self.chance.random() * 0.01)
        other.close()
        self.history.append(request._replace(gone=time.monotonic()))

    def withdraw(self):
        """Releases while a request of its own waits on another connection."""
        key, other = self.chance.choice(list(KINDS)), Connection(self.port)
        words, request = self.draw([key], block=self.chance.choice([20, 400]), keepalive=False)
        request = request._replace(connection=f"{self.line}+", sent=time.monotonic())
        other.send(*words)
        time.sleep(self.chance.random() * 0.02)
        self.release(key)
        self.took(request, other)
        self.close_other(other, request)

    def ask_twice(self):
        """Asks on a second connection before the first has an answer."""
        key, other = self.chance.choice(list(KINDS)), Connection(self.port)
        mode, block = self.chance.choice(KINDS[key]), self.chance.choice([20, 400])
        wanted = {"mode": mode, "block": block, "reentrant": False}
        wanted |= {"keepalive": False, "ephemeral": None}
        words, request = self.draw([key], **wanted)
        request = request._replace(connection=f"{self.line}+", sent=time.monotonic())
        other.send(*words)
        time.sleep(self.chance.random() * 0.01)
        self.take([key], **wanted)
        self.took(request, other)
        self.close_other(other, request)
        self.work()

    def close_other(self, other, request):
        """Closes a second connection."""
        sent = time.monotonic()
        other.close()
        self.history.append(
            Request(
                "close", (), self.owner, sent, time.monotonic(), connection=request.connection
            )
        )

    def watch(self):
        """Reads the locks of others."""
        key = self.chance.choice(list(KINDS))
        for _ in range(self.chance.randint(1, 4)):
            dice = self.chance.random()
            if dice < 0.5:
                self.info(key)
            elif dice < 0.9:
                recent = self.chance.choice(self.histories)[-1:]
                if recent and recent[0].owner != "*":
                    self.held_by(recent[0].owner)
            else:
                self.ask("fence", ["LOCK.FENCE", key], key)

    def delete(self):
        """An administrator breaks a lock."""
        key = self.chance.choice(list(KINDS))
        self.ask("del", ["DEL", key], key)

    # The actions of a holder

    def work(self):
        """Some of all that a holder can do."""
        steps = [self.rest, self.renew, self.again, self.change, self.count, self.write]
        steps += [self.fence, self.info, self.held_by, self.miss, self.nest, self.reconnect, self.use]
        weights = [24, 14, 12, 12, 12, 8, 8, 6, 3, 4, 12, 6, 12]
        for _ in range(self.chance.randrange(7)):
            if not self.held:
                return
            self.chance.choices(steps, weights)[0]()

    def any_held(self):
        """A lock that it may hold, and how: (key, token, mode, lease)."""
        key = self.chance.choice(list(self.held))
        return key, *self.held[key]

    def rest(self):
        """Time goes by, perhaps more than the lease."""
        lease = self.any_held()[3] / 1000
        time.sleep(self.chance.random() * lease * self.chance.choice([0.1, 0.5, 1.2]))

    def renew(self):
        """LOCK.RENEW, with and without TOKEN."""
        key, token, mode, _ = self.any_held()
        lease, named = self.chance.choice(LEASES_MS), self.named(token)
        words = ["LOCK.RENEW", key, self.owner, "PX", lease, *token_words(named)]
        if self.ask("renew", words, key, lease=lease / 1000, token=named).reply == 1:
            self.held[key] = (token, mode, lease)
        else:
            self.held.pop(key)

    def again(self):
        """Asks for its own holds."""
        key, _, mode, _ = self.any_held()
        if not self.take([key], mode=mode, block=None):
            self.held.pop(key)

    def change(self):
        """Wants a shared lock alone, or shares it again."""
        key, _, mode, _ = self.any_held()
        if mode in (EXCLUSIVE, SHARED):
            self.take([key], mode=SHARED if mode == EXCLUSIVE else EXCLUSIVE)

    def count(self):
        """LOCK.EXEC of a command whose replies give the order."""
        key, token, _, _ = self.any_held()
        words = ["LOCK.EXEC", key, token, "INCR", f"count:{key}"]
        self.ask("count", words, key, token=token)

    def write(self):
        """LOCK.EXEC of a write that returns the earlier value."""
        key, token, _, _ = self.any_held()
        words = ["LOCK.EXEC", key, token, "SET", f"last:{key}", token, "GET"]
        self.ask("write", words, key, token=token)

    def fence(self):
        """LOCK.FENCE, with and without a token."""
        key, token, _, _ = self.any_held()
        named = self.named(token)
        words = ["LOCK.FENCE", key, *([] if named is None else [named])]
        self.ask("fence", words, key, token=named)

    def info(self, key=None):
        """LOCK.INFO"""
        key = key or self.any_held()[0]
        self.ask("info", ["LOCK.INFO", key, *self.chance.choice([[], ["FULL"]])], key)

    def held_by(self, owner=None):
        """LOCK.HELDBY"""
        owner, self.owner = self.owner, owner or self.owner
        self.ask("heldby", ["LOCK.HELDBY", self.owner])
        self.owner = owner

    def miss(self):
        """Names a token that is not its own."""
        key, token, _, _ = self.any_held()
        words = ["LOCK.RELEASE", key, self.owner, "TOKEN", token - 1]
        self.ask("release", words, key, token=token - 1)

    def nest(self):
        """Takes another lock while it holds one, which can end in a deadlock."""
        keys = [key for key in KINDS if key not in self.held]
        if keys:
            self.take([self.chance.choice(keys)], block=self.chance.choice([20, 100, 400]))

    def named(self, token):
        """Names the token or does not."""
        return token if self.chance.random() < 0.5 else None

    def release(self, key):
        """One release; returns whether something was given up."""
        named = self.named(self.held[key][0]) if key in self.held else None
        words = ["LOCK.RELEASE", key, self.owner, *token_words(named)]
        return self.ask("release", words, key, token=named).reply == 1

    def leave_locks(self):
        """Releases its holds, or leaves them to their leases."""
        for key in list(self.held):
            dice = self.chance.random()
            if dice < 0.6:
                while self.release(key):
                    pass
            elif dice < 0.8:
                self.release(key)
        if self.kept:
            self.reconnect()


def words_of(request):
    """The command that a request for locks is sent as."""
    words = ["LOCK.ACQUIRE", request.lock]
    if request.command == "macquire":
        words = ["LOCK.MACQUIRE", len(request.keys), *request.keys]
    words += [request.owner, "PX", round(request.lease * 1000)]
    if request.block is not None:
        words += ["BLOCK", 0 if request.block == inf else round(request.block * 1000)]
    if request.place:
        words += ["QUEUE", round(request.place * 1000)]
    if request.mode != EXCLUSIVE:
        words += request.mode.upper().split()
    if request.reentrant:
        words += ["REENTRANT"]
    if request.ephemeral is not None:
        words += ["EPHEMERAL", round(request.ephemeral * 1000)]
    if request.keepalive:
        words += ["KEEPALIVE"]
    return words


def token_words(token):
    """The option TOKEN, if a token is named."""
    return [] if token is None else ["TOKEN", token]


def seen_in(reply):
    """A reply to LOCK.INFO, as short as the checks need it."""
    info = as_map(reply)
    if info is None:
        return None
    kind = f"limit {info['limit']}" if info["kind"] == "limit" else info["kind"]
    holders = (as_map(holder) for holder in info["holders"])
    queue = (as_map(waiter) for waiter in info["queue"])
    return Seen(
        kind,
        tuple((holder["owner"], holder["token"], holder["count"]) for holder in holders),
        tuple((waiter["owner"], waiter["state"]) for waiter in queue),
        info["holds"],
    )
