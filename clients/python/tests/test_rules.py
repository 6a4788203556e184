"""The pure parts: bytes, errors, commands, deadlines."""

from pathlib import Path

import pytest
import redis.exceptions
import valkey.exceptions

import redislock
from redislock import _rules
from redislock._resp import Parser, Push, ReplyError, pack
from redislock._rules import Step, Wanted, deadline, judge, longest_wait_ms, new_owner
from redislock.errors import translate

WIRE = (
    b"+OK\r\n:12\r\n$3\r\na\r\n\r\n_\r\n$-1\r\n-ERR no\r\n*2\r\n:1\r\n$1\r\nx\r\n>2\r\n$10\r\ninvalidate\r\n"
    b"*1\r\n$1\r\nk\r\n%1\r\n+a\r\n:1\r\n#t\r\n,1.5\r\n|1\r\n+x\r\n+y\r\n:7\r\n:-1\r\n~1\r\n:3\r\n(123\r\n=5\r\ntxt:a\r\n"
)
REPLIES = [
    b"OK", 12, b"a\r\n", None, None, "ERR no", [1, b"x"], [b"invalidate", [b"k"]], {b"a": 1}, True, 1.5, 7, -1, [3],
    123, b"txt:a",
]  # fmt: skip


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_replies_may_arrive_in_pieces_of_any_size(size: int) -> None:
    parser, found = Parser(), []
    for begin in range(0, len(WIRE), size):
        found += list(parser.feed(WIRE[begin : begin + size]))
    assert [str(each) if isinstance(each, ReplyError) else each for each in found] == REPLIES
    assert [type(each) for each in found].count(Push) == 1


def test_what_is_no_reply_is_an_error() -> None:
    with pytest.raises(ReplyError, match="does not speak RESP"):
        list(Parser().feed(b"HTTP/1.1 400 Bad Request\r\n"))


def test_commands_are_packed() -> None:
    assert pack("GET", b"\xff", 12) == b"*3\r\n$3\r\nGET\r\n$1\r\n\xff\r\n$2\r\n12\r\n"


def error_codes() -> list[tuple[str, str]]:
    """Each error of the table of error codes, and what this client makes of it."""
    table = (Path(__file__).parents[3] / "docs/reference/errors.md").read_text()
    rows = [row[2:].split(" | ") for row in table.splitlines() if row.startswith("| `")]
    kinds = ["ServerRefusedError" if row[4] == "-" else row[4].strip("`") for row in rows]
    return [(f"{row[0]} {row[1]}".replace("`", ""), kind) for row, kind in zip(rows, kinds, strict=True)]


UNKNOWN = [
    ("ERR unknown command 'LOCK.ACQUIRE'", "ModuleMissingError"),
    ("NEWCODE that no client knows", "ServerRefusedError"),
]


@pytest.mark.parametrize(("text", "kind"), [*error_codes(), *UNKNOWN])
def test_each_error_code_is_what_the_table_says(text: str, kind: str) -> None:
    is_again = judge(text).step is not Step.FAIL
    assert is_again == (kind == "again")
    if is_again:
        return
    error = translate(text)
    assert type(error).__name__ == kind and str(error).startswith(text)
    for driver in (redis.exceptions, valkey.exceptions):
        assert isinstance(error, driver.LockError) and isinstance(error, driver.ResponseError)


def test_errors_tell_more_than_a_text() -> None:
    error = translate(
        "DEADLOCK this wait would never end: 'ben' waits for 'left' and there for 'ann', "
        "'ann' waits for 'right' and there for 'ben'"
    )
    assert isinstance(error, redislock.DeadlockError)
    assert error.cycle == (("ben", "left", "ann"), ("ann", "right", "ben"))
    quarantine = translate("QUARANTINE 4711 milliseconds are left in which this server grants no new lock")
    assert isinstance(quarantine, redislock.QuarantineError) and quarantine.left == 4.711
    missing = str(translate("ERR unknown command 'LOCK.ACQUIRE', with args beginning with: 'k' 'PX' '30000'"))
    assert missing.startswith("ERR unknown command 'LOCK.ACQUIRE'. The module") and "loadmodule" in missing


def test_errors_of_this_library_are_the_drivers_own() -> None:
    for driver in (redis.exceptions, valkey.exceptions):
        assert issubclass(redislock.LockTimeoutError, driver.LockError)
        assert issubclass(redislock.LockLostError, driver.LockNotOwnedError)
        assert issubclass(redislock.ConnectionFailedError, driver.ConnectionError)
    assert repr(redislock.ConnectionFailedError("x")) == "ConnectionFailedError('x')"


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("MOVED 866 127.0.0.1:7001", Step.MOVED),
        ("ASK 866 ::1:7001", Step.ASK),
        ("TRYAGAIN the slot of this lock is on its way", Step.AGAIN),
        ("READONLY locks are granted by the primary", Step.AGAIN),
        ("UNBLOCKED this server is no longer a primary", Step.AGAIN),
        ("LOADING Redis is loading the dataset in memory", Step.AGAIN),
        ("WRONGTYPE Operation", Step.FAIL),
        ("NOPERM no", Step.FAIL),
    ],
)
def test_what_follows_from_an_error(text: str, step: Step) -> None:
    assert judge(text).step is step


def test_redirections_name_an_address() -> None:
    assert judge("MOVED 866 ::1:7001").address == ("::1", 7001)
    assert judge("MOVED 866 :7001").address == ("", 7001)


def test_the_longest_wait_is_read_from_the_error() -> None:
    assert longest_wait_ms("ERR QUEUE must be an integer from 1 to 3000 (milliseconds)") == 3000
    assert longest_wait_ms("ERR PX must be an integer from 1 to 3000 (milliseconds)") is None


def test_a_deadline_allows_for_clocks_and_the_last_step() -> None:
    assert deadline(100.0, 30.0) == pytest.approx(130 - 0.3 - 0.002)
    assert deadline(0.0, 0.001) < 0, "a lease that is shorter than the allowance is never sure"


def test_each_owner_is_another_and_tells_who_it_is() -> None:
    owners = {new_owner() for _ in range(1000)}
    assert len(owners) == 1000
    assert all(len(owner.split(b":")) == 3 and len(owner) <= 256 for owner in owners)


def test_requests_say_what_was_asked() -> None:
    wanted = Wanted((b"k",), 3.0, "semaphore", 2, b"o")
    assert wanted.acquire(queue_ms=5) == ("LOCK.ACQUIRE", b"k", b"o", "PX", 3000, "QUEUE", 5, "LIMIT", 2)
    both = Wanted((b"a", b"b"), 3.0, "read", None, b"o")
    assert both.acquire(block_ms=0) == ("LOCK.MACQUIRE", 2, b"a", b"b", b"o", "PX", 3000, "BLOCK", 0, "SHARED")
    assert wanted.release(b"k") == ("LOCK.RELEASE", b"k", b"o")
    assert wanted.renew(b"k", 7) == ("LOCK.RENEW", b"k", b"o", "PX", 3000, "TOKEN", 7)


def test_a_doubt_is_handed_on_and_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(_rules, "clock", lambda: now)
    first, second = Wanted((b"k",)), Wanted((b"k",))
    assert not first.is_doubtful
    first.doubt()
    second.inherit_doubt(first)
    assert first.is_doubtful and second.is_doubtful
    now += _rules.DOUBT
    second.inherit_doubt(first)
    assert not first.is_doubtful and not second.is_doubtful, "repeated requests must not hand it on for ever"
