"""Clients whose locks are granted in one turn of the event loop are notified some at a time.

Grants are decided at once (G6). A client that still waits for its turn to be answered may leave, be rejected or ask
again like every waiter (G7, G8, G9).
"""

import time

import pytest

from harness.confirming import confirming
from harness.crowd import Crowd
from harness.kinds import count
from harness.limits import SOON_SECONDS, eventually
from harness.replies import module_info, owner_of
from harness.server import parse_info
from harness.storm import Storm, admit, look_in_a_turn, read_look
from harness.wire import encode

#: More than three turns notify waiters.
CLIENTS = 900

#: The number of looks that are on their way at a time. Each takes its while: on a busy machine, too, turns run out of
#: looks only if we send nothing for tens of milliseconds.
LOOKS = 40
LOOK = "for n = 1, 100000 do end return redis.call('INFO', 'clients')"

RELEASE_ALL = f"for n = 0, {CLIENTS - 1} do redis.call('LOCK.RELEASE', 'lock:' .. n, 'first') end"


class Line:
    """A crowd, each of which waits for a lock of its own."""

    def __init__(self, server, crowd):
        self.server = server
        self.crowd = crowd
        self.told, self.ids = {}, {}
        crowd.say(range(CLIENTS), lambda _: encode("CLIENT ID"))
        crowd.hear(lambda n, line: self.ids.__setitem__(n, int(line[1:])), lambda: len(self.ids) == CLIENTS)
        storm = Storm(server, crowd, CLIENTS, CLIENTS)
        self.cli = storm.cli
        storm.hold_all()
        storm.wait_in_queue()

    def release_all_and(self, *commands):
        """All locks are given back and then this is done, in one turn of the event loop; its replies."""
        assert self.cli("PING") == "PONG"
        self.cli.send_bytes(encode("EVAL", RELEASE_ALL, 0) + b"".join(map(encode, commands)))
        assert self.cli.read() is None
        return [self.cli.read_any() for _ in commands]

    def release_all_and_look(self):
        """Gives all locks back. Each later turn of the event loop takes a look, until no client is blocked any more.
        Returns how many clients were found blocked, each number once."""
        last = CLIENTS - 1
        look = look_in_a_turn("EVAL", LOOK, 0)
        self.cli.send_bytes(encode("EVAL", RELEASE_ALL, 0) + encode("LOCK.HELDBY", f"w{last}") + look * LOOKS)
        assert self.cli.read() is None
        assert [row[1] for row in self.cli.read()] == ["held"], "the client that is told last holds its lock already"
        blocked, left, deadline = [], LOOKS, time.monotonic() + SOON_SECONDS
        while left > 0:
            blocked.append(int(parse_info(read_look(self.cli))["blocked_clients"]))
            if blocked[-2:-1] == blocked[-1:]:
                blocked.pop()
            left -= 1
            if blocked[-1] > 0:
                assert time.monotonic() < deadline, blocked
                self.cli.send_bytes(look)
                left += 1
        assert blocked == sorted(blocked, reverse=True), blocked
        return blocked

    def hear(self, who):
        """Waits until all of these were notified; no client is notified twice."""

        def on_line(number, line):
            assert number not in self.told, (number, self.told[number], line)
            self.told[number] = line

        self.crowd.hear(on_line, lambda: self.told.keys() >= set(who))

    def check_granted(self, who):
        """Each of them received the token that it holds."""
        for number in who:
            token = int(self.told[number][1:])
            assert self.cli("LOCK.FENCE", f"lock:{number}", token) == 1
            assert owner_of(self.cli, f"lock:{number}") == f"w{number}"


@pytest.fixture
def line(start_server):
    """A line in which everybody waits."""
    server = start_server()
    admit(server)
    with Crowd(server.port, CLIENTS, "crowd") as crowd:
        yield Line(server, crowd)


def test_waiters_are_granted_at_once_and_notified_in_several_turns(line):
    # G6, G7: 3,800 locks that changed hands in one turn kept everybody else waiting for a tenth of a second.
    blocked = line.release_all_and_look()
    assert len({number for number in blocked if 0 < number < CLIENTS}) >= 2, blocked
    line.hear(range(CLIENTS))
    line.check_granted(range(CLIENTS))


def test_confirmed_waiters_are_notified_in_several_turns_too(start_server):
    # CONTRACT 6: replicas confirm all of them with one answer.
    primary, _ = confirming(start_server, quarantine_ms=600_000)
    admit(primary)
    with Crowd(primary.port, CLIENTS, "crowd") as crowd:
        line = Line(primary, crowd)
        blocked = line.release_all_and_look()
        assert len({number for number in blocked if 0 < number < CLIENTS}) >= 2, blocked
        line.hear(range(CLIENTS))
        line.check_granted(range(CLIENTS))


def test_a_waiter_that_disconnects_before_it_is_notified_is_not_granted(line):
    # G8, G6: the next in line has the lock.
    last = CLIENTS - 1
    heir = line.server.ask("LOCK.ACQUIRE", f"lock:{last}", "heir", "PX", 600_000, "BLOCK", 0)
    killed = line.release_all_and(f"CLIENT KILL ID {line.ids[last]}")
    assert killed == [1]
    token = heir.answer()
    assert line.cli("LOCK.FENCE", f"lock:{last}", token) == 1
    assert owner_of(line.cli, f"lock:{last}") == "heir"
    line.hear(range(CLIENTS))
    assert line.told.pop(last) is None
    line.check_granted(range(last))
    assert count(line.cli, "waiters") == 0


def test_waiters_that_disconnect_before_they_are_notified_leave_nothing(line):
    # G8
    line.release_all_and("CLIENT KILL USER crowd")
    eventually(lambda: count(line.cli, "holds") == 0, "what nobody was told of is taken back", pause=0.02)
    info = module_info(line.cli)
    assert (info["locks"], info["waiters"]) == ("0", "0")
    assert int(info["grants"]) == int(info["releases"])


def test_a_waiter_unblocked_before_its_turn_is_notified_at_once(line):
    # G7, G9: it was granted the lock before CLIENT UNBLOCK came; it learns of it, and is not notified twice.
    last = CLIENTS - 1
    assert line.release_all_and(f"CLIENT UNBLOCK {line.ids[last]}") == [1]
    line.hear(range(CLIENTS))
    line.check_granted(range(CLIENTS))


def test_a_waiter_unblocked_with_an_error_before_its_turn_holds_nothing(line):
    # G7: the server says -UNBLOCKED itself. Then no client knows of the grant.
    last = CLIENTS - 1
    assert line.release_all_and(f"CLIENT UNBLOCK {line.ids[last]} ERROR") == [1]
    line.hear(range(CLIENTS))
    assert line.told.pop(last).startswith(b"-UNBLOCKED")
    eventually(lambda: line.cli("EXISTS", f"lock:{last}") == 0, "its lock is free")
    line.check_granted(range(last))


def test_an_owner_that_asks_again_before_its_turn_has_the_same_token(line):
    # G9: on another connection. Then the first may go: its request is known.
    last = CLIENTS - 1
    ask = f"LOCK.ACQUIRE lock:{last} w{last} PX 600000"
    token, killed = line.release_all_and(ask, f"CLIENT KILL ID {line.ids[last]}")
    assert killed == 1
    line.hear(range(CLIENTS))
    assert line.told.pop(last) is None
    line.check_granted(range(last))
    assert line.cli("LOCK.FENCE", f"lock:{last}", token) == 1
    assert owner_of(line.cli, f"lock:{last}") == f"w{last}"


def test_what_was_released_before_its_turn_stays_released(line):
    # G10: its owner releases it on another connection; a late reply is a token that is dead.
    last = CLIENTS - 1
    assert line.release_all_and(f"LOCK.RELEASE lock:{last} w{last}") == [1]
    line.hear(range(CLIENTS))
    assert line.cli("LOCK.FENCE", f"lock:{last}", int(line.told.pop(last)[1:])) == 0
    assert line.cli("EXISTS", f"lock:{last}") == 0
    line.check_granted(range(last))


def test_a_server_that_becomes_a_replica_tells_everybody(line):
    # G7: no client waits for an answer that never comes.
    line.release_all_and("REPLICAOF 127.0.0.1 1")
    line.hear(range(CLIENTS))
    kinds = {told and told[:1] for told in line.told.values()}
    assert kinds <= {None, b":", b"-"}, kinds
