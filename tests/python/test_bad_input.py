"""Bad input changes nothing and is reported in one clear line (G14, CONTRACT 9).

Every argument of every command is tried with every kind of mistake against three locks. One is free. One, of each kind,
the same owner holds, where an accepted command would change the lease or end the hold. One another owner holds, where
it would wait.
"""

import pytest

from harness.kinds import line_of, snapshot, take
from harness.server import Server
from harness.wire import Connection

MAX = 2**53 - 1
LEASE_MS = "1 to 3600000"
LEASE_SECONDS = "1 to 3600"

# Words that are not an integer from 0 to 2^53 - 1, in the one spelling that is accepted.
NOT_A_NUMBER = [
    "", " ", "-1", "-0", "+1", "01", "00", " 1", "1 ", "1.0", "1.5", "1e3", "0x10",
    "abc", "1a", "١", "1\0", "1_000", "1,000", "inf", "nan", "--1",
    "-9223372036854775808", "9007199254740992", "9223372036854775807",
    "9223372036854775808", "18446744073709551615", "18446744073709551616",
    "18446744073709551617", "9" * 1000,
]  # fmt: skip

# Options of other commands, and of versions to come.
FOREIGN = [
    ["NX"], ["XX"], ["WAIT", "5"], [""], ["PXAT", "5"], ["KEEPTTL"], ["FULL"],
    ["RAISED", "5"], ["PX\0", "5"], ["P"], ["PXX", "5"], ["5"],
]  # fmt: skip

# Options of LOCK.ACQUIRE and of nothing else.
OF_ACQUIRE = [
    ["SHARED"], ["LIMIT", "3"], ["QUEUE", "10"], ["REENTRANT"], ["EPHEMERAL", "10"],
    ["KEEPALIVE"],
]  # fmt: skip

ACQUIRE = ["LOCK.ACQUIRE", "door", "alice"]
RELEASE = ["LOCK.RELEASE", "door", "alice"]
RENEW = ["LOCK.RENEW", "door", "alice"]
LEASE = ["PX", "9000"]

# Numbers of LOCK.ACQUIRE that only some kinds have: option, accepted range, unit.
RANGES = [
    ("QUEUE", "1 to 3600000", "milliseconds"),
    ("LIMIT", "1 to 1000000", "holders"),
    ("EPHEMERAL", "0 to 3600000", "milliseconds"),
]
FLAGS = ["SHARED", "REENTRANT", "KEEPALIVE"]
WITH_VALUE = [["QUEUE", "100"], ["LIMIT", "2"], ["EPHEMERAL", "5"], ["BLOCK", "0"]]
TOGETHER = [
    [["BLOCK", "0"], ["QUEUE", "100"]], [["SHARED"], ["LIMIT", "2"]],
    [["SHARED"], ["REENTRANT"]], [["LIMIT", "2"], ["REENTRANT"]],
]  # fmt: skip


def number_cases():
    """(arguments, fragments of the error): every number with every wrong value."""
    for value in NOT_A_NUMBER + ["0"]:
        for command in (ACQUIRE, RENEW):
            yield [*command, "PX", value], ["PX", LEASE_MS, "milliseconds"]
            yield [*command, "EX", value], ["EX", LEASE_SECONDS, "seconds"]
        yield [*RELEASE, "TOKEN", value], ["TOKEN", f"1 to {MAX}"]
        yield [*RENEW, "PX", "9000", "TOKEN", value], ["TOKEN", f"1 to {MAX}"]
        yield [*RENEW, "TOKEN", value, "PX", "9000"], ["TOKEN", f"1 to {MAX}"]
        yield ["LOCK.FENCE", "door", value], ["token", f"1 to {MAX}"]
        yield ["LOCK.INFO", "door", "FULL", "COUNT", value], ["COUNT", "1 to 2000"]
    for value in NOT_A_NUMBER:
        yield [*ACQUIRE, "PX", "9000", "BLOCK", value], ["BLOCK", f"0 to {MAX}"]
        yield [*ACQUIRE, "BLOCK", value, "EX", "9"], ["BLOCK", f"0 to {MAX}"]
    for command in (ACQUIRE, RENEW):
        yield [*command, "PX", "3600001"], ["PX", LEASE_MS]
        yield [*command, "EX", "3601"], ["EX", LEASE_SECONDS]


def option_cases():
    """(arguments, fragments): options unknown, repeated, contradictory, incomplete."""
    for foreign in FOREIGN:
        yield [*ACQUIRE, "PX", "9000", *foreign], ["syntax error"]
        yield [*ACQUIRE, *foreign, "PX", "9000"], ["syntax error"]
        yield [*RENEW, "PX", "9000", *foreign], ["syntax error"]
        yield [*RELEASE, *foreign], ["syntax error"]
        if foreign != ["FULL"]:
            yield ["LOCK.INFO", "door", foreign[0]], ["syntax error"]
    for option in OF_ACQUIRE:
        yield [*ACQUIRE, *option, "BLOCK", "1"], ["syntax error", "lease" if option[0] != "QUEUE" else "BLOCK"]
        yield [*RENEW, "PX", "9000", *option], ["syntax error"]
        yield [*RELEASE, *option], ["syntax error"]
    yield ["LOCK.ACQUIRE", "door", "*", "PX", "9000", "QUEUE", "5"], ["QUEUE", "owner"]
    for command in (ACQUIRE, RENEW):
        yield [*command, "PX", "9000", "PX", "9000"], ["syntax error", "PX"]
        yield [*command, "EX", "9", "ex", "9"], ["syntax error", "EX"]
        yield [*command, "PX", "9000", "EX", "9"], ["syntax error"]
        yield [*command, "EX", "9", "PX", "9000"], ["syntax error"]
        yield [*command, "EX", "9", "PX"], ["ERR"]
    yield [*ACQUIRE, "PX", "9000", "BLOCK", "1", "BLOCK", "1"], ["syntax", "BLOCK"]
    yield [*ACQUIRE, "BLOCK", "1", "PX", "9000", "block", "2"], ["syntax", "BLOCK"]
    yield [*ACQUIRE, "PX", "9000", "BLOCK"], ["syntax", "BLOCK"]
    yield [*ACQUIRE, "BLOCK", "10"], ["syntax", "lease", "PX", "EX"]
    yield [*ACQUIRE, "BLOCK", "10", "PX"], ["syntax", "PX"]
    yield [*ACQUIRE, "PX", "9000", "TOKEN", "5"], ["syntax"]
    yield [*RENEW, "TOKEN", "5"], ["syntax", "lease", "PX", "EX"]
    yield [*RENEW, "PX", "9000", "BLOCK", "0"], ["syntax"]
    yield [*RENEW, "PX", "9000", "TOKEN"], ["syntax", "TOKEN"]
    yield [*RENEW, "PX", "9000", "TOKEN", "5", "TOKEN", "5"], ["syntax", "TOKEN"]
    yield [*RELEASE, "TOKEN"], ["syntax", "TOKEN"]
    yield [*RELEASE, "TOKEN", "5", "TOKEN", "5"], ["syntax", "TOKEN"]
    yield [*RELEASE, "TOKEN", "5", "token"], ["syntax", "TOKEN"]
    yield [*RELEASE, "PX", "9000"], ["syntax"]
    yield ["LOCK.INFO", "door", "FULL", "FULL"], ["syntax", "FULL"]
    yield ["LOCK.INFO", "door", "FULL", "COUNT", "2001"], ["COUNT", "1 to 2000"]
    yield ["LOCK.INFO", "door", "FULL", "COUNT"], ["syntax", "COUNT", "1 to 2000"]
    yield ["LOCK.INFO", "door", "FULL", "COUNT", "5", "COUNT", "5"], ["syntax", "COUNT"]
    yield ["LOCK.INFO", "door", "COUNT", "5"], ["syntax", "FULL is missing"]
    yield ["LOCK.FENCE", "door", "5", "5"], ["ERR"]


def owner_cases():
    """(arguments, fragments): owners that are none."""
    for owner in ("", "x" * 257, "x" * 100_000):
        yield ["LOCK.ACQUIRE", "door", owner, "PX", "9000"], ["owner", "1 to 256"]
        yield ["LOCK.ACQUIRE", "door", owner, "PX", "9000", "BLOCK", "0"], ["owner"]
        yield ["LOCK.RELEASE", "door", owner], ["owner", "1 to 256"]
        yield ["LOCK.RELEASE", "door", owner, "TOKEN", "5"], ["owner", "1 to 256"]
        yield ["LOCK.RENEW", "door", owner, "PX", "9000"], ["owner", "1 to 256"]


def arity_cases():
    """(arguments, fragments): too few arguments, and far too many."""
    for command in (ACQUIRE, RENEW):
        yield command[:1], ["wrong number of arguments", command[0]]
        yield command[:2], ["the owner is missing", f"{command[0]} key owner PX milliseconds | EX seconds"]
        yield command, ["a lease is required", "PX milliseconds or EX seconds"]
        yield [*command, "30000"], ["a lease needs its unit", "PX 30000 (milliseconds) or EX 30000 (seconds)"]
        yield [*command, "PX"], ["option PX needs a value", LEASE_MS, "milliseconds"]
        yield [*command, "EX"], ["option EX needs a value", LEASE_SECONDS, "seconds"]
        yield [*command, "PX", "9000"] + ["x"] * 10_000, ["ERR"]
    yield RELEASE[:1], ["wrong number of arguments", RELEASE[0]]
    yield RELEASE[:2], ["the owner is missing", "LOCK.RELEASE key owner [TOKEN token]"]
    yield ["LOCK.EXEC", "door"], ["the token is missing", "LOCK.EXEC key token command [arg ...]"]
    yield ["LOCK.EXEC", "door", "5"], ["the command is missing", "LOCK.EXEC key token command [arg ...]"]
    for words, told in [
        ("2 a o PX 100", "numkeys is 2, so 'o' is the last key and 'PX' is the owner; a lease needs its unit"),
        ("1 a b o PX 100", "numkeys is 1, so 'a' is the last key and 'b' is the owner; unknown option 'o'"),
        ("2 a b o", "numkeys is 2, so 'b' is the last key and 'o' is the owner; a lease is required"),
        ("0 o PX 100", "numkeys must be an integer from 1 to 64"),
        ("a b o PX 100", "numkeys must be an integer from 1 to 64"),
        ("3 a b", "numkeys is 3, but 2 argument(s) follow: give that many keys, then the owner"),
        ("2 a b", "the owner after the keys is missing: LOCK.MACQUIRE numkeys key [key ...] owner PX"),
    ]:
        yield ["LOCK.MACQUIRE", *words.split()], [told]
    yield RELEASE + ["x"] * 10_000, ["ERR"]
    for command in ("LOCK.FENCE", "LOCK.INFO"):
        yield [command], ["wrong number of arguments", command]
        yield [command, "door"] + ["x"] * 10_000, ["ERR"]


def range_cases():
    """(arguments, fragments): every wrong number for every option."""
    for option, span, unit in RANGES:
        low, high = span.split(" to ")
        wrong = [*NOT_A_NUMBER, str(int(high) + 1), *(["0"] if low == "1" else [])]
        for value in wrong:
            yield [*ACQUIRE, *LEASE, option, value], [option, span, unit]
            yield [*ACQUIRE, option, value, *LEASE], [option, span, unit]


def kind_cases():
    """(arguments, fragments): options of all kinds that are incomplete, repeated, contradictory, without a lease."""
    for option, *_ in RANGES:
        yield [*ACQUIRE, *LEASE, option], ["syntax error", option]
    for flag in FLAGS:
        yield [*ACQUIRE, *LEASE, flag, flag], ["syntax error", flag]
        yield [*ACQUIRE, flag, *LEASE, flag.lower()], ["syntax error", flag]
        yield [*ACQUIRE, flag, "BLOCK", "0"], ["syntax error", "lease"]
        yield [*ACQUIRE, *LEASE, flag, "1"], ["syntax error"]
    for option in WITH_VALUE:
        yield [*ACQUIRE, *LEASE, *option, *option], ["syntax error", option[0]]
        yield [*ACQUIRE, *option, *LEASE, option[0].lower(), "7"], ["syntax error", option[0]]
        yield [*ACQUIRE, *option], ["syntax error", "lease"]
    for first, second in TOGETHER:
        for pair in ((first, second), (second, first)):
            words = [word for option in pair for word in option]
            yield [*ACQUIRE, *LEASE, *words], ["syntax error", first[0], second[0]]
            yield [*ACQUIRE, *words, *LEASE], ["syntax error", first[0], second[0]]
    for option in (*FLAGS, "LIMIT", "QUEUE", "EPHEMERAL"):
        yield ["LOCK.INFO", "door", option], ["syntax error"]
    for foreign in ("WAIT", "SHARED\0", "SHARE", "EXCLUSIVE", "COUNT", "ALL"):
        yield [*ACQUIRE, *LEASE, foreign], ["syntax error", "SHARED", "LIMIT", "REENTRANT"]


CASES = [*number_cases(), *option_cases(), *owner_cases(), *arity_cases(), *range_cases(), *kind_cases()]
STATES = {
    "free": [],
    "alice holds": [[*ACQUIRE, "PX", "600000"]],
    "alice reads": [[*ACQUIRE, "PX", "600000", "SHARED"], ["LOCK.ACQUIRE", "door", "bob", "PX", "600000", "SHARED"]],
    "alice has a permit": [[*ACQUIRE, "PX", "600000", "LIMIT", "2"]],
    "alice has entered twice": [[*ACQUIRE, "PX", "600000", "REENTRANT"]] * 2,
    "bob holds": [["LOCK.ACQUIRE", "door", "bob", "PX", "600000"]],
}


def name_of(case):
    """A test id that shows the command."""
    words = [word if len(word) <= 24 else f"{len(word)}bytes" for word in case[0][:8]]
    return ascii(" ".join(words))[1:-1]


@pytest.fixture(scope="module")
def recorded():
    """A server that records every write, so that one can see that there was none."""
    server = Server("--appendonly", "yes", "--appendfsync", "no").start()
    yield server
    server.stop()
    server.finish()


def recorded_bytes(server):
    """The number of bytes written to the append-only file."""
    return int(server.info("persistence")["aof_current_size"])


def what_is_there(server, cli):
    """The state that a refused command must leave unchanged; a lease may only have become shorter."""
    return snapshot(cli, "door"), cli("DBSIZE"), cli("DEBUG DIGEST"), recorded_bytes(server)


@pytest.mark.parametrize("case", CASES, ids=map(name_of, CASES))
def test_bad_input_is_refused_without_effect(recorded, case):
    # G14
    arguments, fragments = case
    cli = Connection(recorded.port)
    for state in STATES.values():
        cli("FLUSHALL")
        for line in state:
            cli(*line)
        before = what_is_there(recorded, cli)
        reply = cli.bytes_of(*arguments)
        assert reply.startswith(b"-ERR "), reply[:200]
        assert reply.count(b"\r\n") == 1 and reply.count(b"\n") == 1, "one line"
        assert len(reply) < 500, "a line that one can read"
        for fragment in fragments:
            assert fragment.lower() in reply.decode(errors="replace").lower()
        assert what_is_there(recorded, cli) == before
        assert line_of(cli, "door") == [], "it does not wait"
    cli.close()


def test_the_record_of_writes_does_see_a_good_command(recorded):
    # The check above can fail: each command that is accepted leaves a trace.
    cli = Connection(recorded.port)
    cli("FLUSHALL")
    for command in (
        "LOCK.ACQUIRE door alice PX 60000",
        "LOCK.RENEW door alice PX 600000",
        "LOCK.RELEASE door alice",
    ):
        before = recorded_bytes(recorded)
        assert cli(command)
        assert recorded_bytes(recorded) > before, command
    cli.close()


@pytest.mark.parametrize(
    "command",
    [
        "LOCK.ACQUIRE door bob PX 60000",
        "LOCK.RELEASE door bob",
        "LOCK.RENEW door bob PX 60000",
        "LOCK.RELEASE door alice TOKEN 1",
        "LOCK.RENEW door alice PX 60000 TOKEN 1",
        "LOCK.FENCE door",
        "LOCK.INFO door",
    ],
)
def test_a_command_that_changes_nothing_is_not_recorded(recorded, command):
    # G13: facts are replicated, not requests
    cli = Connection(recorded.port)
    cli("FLUSHALL")
    cli("LOCK.ACQUIRE door alice PX 60000")
    before = recorded_bytes(recorded)
    cli(command)
    assert recorded_bytes(recorded) == before
    cli.close()


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("break_with", ["\r\n+OK\r\n", "\n", "\r", "\0", "\x1b[2J"])
@pytest.mark.parametrize(
    "command",
    [
        ["LOCK.ACQUIRE", "door", "alice", "PX", "9000", "{}"],
        ["LOCK.ACQUIRE", "door", "alice", "PX", "{}"],
        ["LOCK.RENEW", "door", "alice", "PX", "9000", "{}"],
        ["LOCK.RELEASE", "door", "alice", "{}"],
        ["LOCK.FENCE", "door", "{}"],
        ["LOCK.INFO", "door", "{}"],
    ],
)
def test_an_error_cannot_be_made_to_carry_a_second_reply(
    server, protocol, command, break_with
):
    # G14: a client's bytes may stand in the error, but not as protocol
    cli = server.connect(protocol)
    reply = cli.bytes_of(*[word.format(f"x{break_with}y") for word in command])
    assert reply.startswith(b"-ERR ")
    assert reply.count(b"\n") == 1 and reply.count(b"\r") == 1
    assert cli("PING") == "PONG", "the next reply belongs to the next command"


def test_bad_input_does_not_wait(server, cli):
    # A request with a mistake is refused at once, also where it would have waited.
    cli("LOCK.ACQUIRE door alice PX 60000")
    reply = cli.bytes_of("LOCK.ACQUIRE door bob BLOCK 0 PX 1 NX")
    assert reply.startswith(b"-ERR ")
    assert int(server.info("clients")["blocked_clients"]) == 0


@pytest.mark.parametrize(
    "command",
    [
        f"LOCK.ACQUIRE door alice PX 3600000 BLOCK {MAX}",
        "LOCK.ACQUIRE door alice EX 3600",
        "LOCK.ACQUIRE door alice PX 1",
        "LOCK.ACQUIRE door alice EX 1",
        f"LOCK.RELEASE door alice TOKEN {MAX}",
        "LOCK.RELEASE door alice TOKEN 1",
        f"LOCK.RENEW door alice PX 3600000 TOKEN {MAX}",
        f"LOCK.FENCE door {MAX}",
        "LOCK.FENCE door 1",
    ],
)
def test_the_ends_of_each_range_are_accepted(cli, command):
    cli(command)


@pytest.mark.parametrize("words", [
    "SHARED EPHEMERAL 0 KEEPALIVE QUEUE 1", "REENTRANT EPHEMERAL 0 keepalive QUEUE 1", "keepalive ephemeral 3600000 limit 1000000",
    "Limit 1 Block 9007199254740991", "queue 3600000", "EPHEMERAL 0 SHARED BLOCK 0",
])  # fmt: skip
def test_options_in_any_order_and_case(cli, words):
    assert isinstance(take(cli, "door", "alice", words), int)
    cli("DEL door")
    assert isinstance(cli("LOCK.ACQUIRE", "door", "alice", *words.split(), "px", 9000), int)
