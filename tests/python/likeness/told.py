"""The outcome of a step, as both sides report it, and their differences.

The allowed differences, each with a reason. Everything else is compared byte for byte, tokens, leases left and waits
included.

* The words of NOPERM, READONLY and EXECABORT: the server's own, and others on each version. Their codes are compared.
  So are those of MOVED and ASK: the simulated servers have no addresses.
* An owner that the server mints: chance. It is called by when it was seen first.
* Numbers of connections: the server's own. They are called by the client.
* Clients that are answered in one step have no order, for no client sees one: each has its own connection.
* Among locks that are broken together (a flush, SWAPDB) there is none (G15 is of each lock). It is that of a map.
* In which order a server saves its keys, and so loads them (DEBUG RELOAD): that of a map. So there is none among leases
  that end, or begin to run out, at one moment after that. If leases of two locks end at one moment, chance decides
  which waiter is granted first and has the lower token. The simulated server says so ("chance"), and a round ends
  there.
* The output of DUMP for a string: the server's own form. Of a lock the numbers are compared, packed or not: the
  simulated server packs those of a lock that more than two hold, a real one of more than 1,000.

No script does the following, for servers do it in different ways or at no definite moment:

* Commands after FLUSHALL SYNC in one packet: Redis 8 blocks the client until a thread has freed all.
* CLIENT UNBLOCK with ERROR of a client that has sent more commands, while grants are confirmed: Redis 7.0 reads them
  after the consequences, others before.
* Commands after a request that replicas have to confirm, in one packet: if they do not confirm it, Redis 7.0 reads them
  before the grant is revoked, others after.
* MULTI while a key is gone whose slot begins to leave: Valkey 9 answers ASK to EXEC, others to what they would queue.
* CLIENT UNBLOCK of a client that CLIENT PAUSE holds up: Redis 7.0 ends itself, without the module, too.
* Roles change where no replica confirms: a server that follows another one lets its own replicas go.
* Active expiry, which samples keys by chance: it is off, and each key is looked for whenever time has gone on.
* A command with too few words: the server itself counts them on Valkey and Redis, and names the command.

The simulated server lacks these. Other simulated lives, and `make differ`, are about them:

* Keys that the server itself moves to another node: MIGRATE, and whole slots on Valkey 9.
* Slots that come: IMPORTING, ASKING.
* Scripts in a cluster, and commands on several keys there (LOCK.MACQUIRE). Each name here is in a slot of its own.
* Failovers that come about: the replica here cannot become a primary.
"""

import itertools
import re

from harness.payload import MODULE_TYPE, blocks_of, body
from harness.wire import ServerError

#: Errors of the server itself whose words differ from version to version.
WORDED_OTHERWISE = {"NOPERM", "READONLY", "EXECABORT", "MOVED", "ASK"}
#: The words by which servers say in scripts that a user has no right to run a command.
NO_RIGHT = ("NOPERM", "ACL failure", "can't run this command or subcommand", "has no permissions")
MINTED = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
#: A lock in a payload: the bytes of its blocks.
BLOCKS = re.compile(r"\bx01(?:[0-9a-f]{2}){10,}(?:,x01(?:[0-9a-f]{2})+)*\b")
#: The factor for the number of a connection's life on the simulated server.
LIVES = 100
#: The mark of the simulated server for an order that is chance on a real one.
CHANCE = "chance"
#: Among lines that have this there is no order: locks that are broken together. And what becomes of locks at one moment
#: that a real server has loaded in the order of its keys.
UNORDERED = ("\tlock.broken",)
UNORDERED_RELOADED = (*UNORDERED, "\tlock.expired", "\tENDED\t", "\tRUNS")
#: In which order, and how, lines of a kind are compared.
KINDS = ("busy", "reply", "event", "file", "stream", "changed", "place", "info")


def flat(reply, clients):
    """A reply as words, its parts concatenated; `clients` gives the name of a connection."""
    if isinstance(reply, ServerError):
        line = reply.line
        if any(words in line for words in NO_RIGHT):
            return ["-NOPERM"]
        return ["-" + (reply.code if reply.code in WORDED_OTHERWISE else line)]
    if reply is None:
        return ["_"]
    if isinstance(reply, bool):
        return [f"#{str(reply).lower()}"]
    if isinstance(reply, int):
        return [f":{reply}"]
    if isinstance(reply, dict):
        words = [f"%{len(reply)}"]
        for name, value in reply.items():
            if name == "client-id" and isinstance(value, int):
                value = clients.get(value, value)
            words += [f"${name}", *(flat(value, clients) if not isinstance(value, str) else [f"${value}"])]
        return words
    if isinstance(reply, list):
        return [f"*{len(reply)}", *(word for each in reply for word in flat(each, clients))]
    return [f"${reply}"]


def payload_text(payload):
    """The blocks of a lock that DUMP gave, as the simulated server writes them; of a string, that it is one."""
    value = body(payload)
    return ",".join(f"x{block.hex()}" for block in blocks_of(value)[1]) if value[0] == MODULE_TYPE else "text"


def unblocked(line):
    """The line with the content of the blocks of locks, owners as they are. The simulated server's blocks are
    smaller."""
    return BLOCKS.sub(lambda found: "".join(map(text_of, found[0].split(","))), line)


def text_of(block):
    """A block without its version and flags."""
    return bytes.fromhex(block[1:])[2:].decode("latin-1").encode("unicode_escape").decode()


class Names:
    """Owners that a server has minted, by the order in which they came."""

    def __init__(self):
        self.known = {}

    def plain(self, line):
        """The line without the parts that cannot be the same."""
        return MINTED.sub(lambda found: self.known.setdefault(found[0], f"minted{len(self.known)}"), unblocked(line))


def simulated(text):
    """The output of the simulated server: for each round a list of steps, each (step, lines)."""
    rounds = []
    for line in text.splitlines():
        words = line.split("\t")
        if words[0] == "step":
            if words[2] == "round":
                rounds.append([])
                names = Names()
            rounds[-1].append(("\t".join(words[2:]), []))
            continue
        for at, word in enumerate(words):
            if word.startswith("-") and word[1:].split(" ")[0] in WORDED_OTHERWISE:
                words[at] = word.split(" ")[0]
            if word.startswith(("$text=", "text=")):
                words[at] = word.split("=")[0]
            if at and words[at - 1] == "$client-id" and word.startswith(":"):
                words[at] = f"$c{int(word[1:]) % LIVES}"
        rounds[-1][-1][1].append(names.plain("\t".join(words)))
    return rounds


def sorted_out(lines, is_reloaded):
    """Lines by their kinds. Between replies to different clients there is no order."""
    found = {kind: [line for line in lines if line.split("\t")[0] == kind] for kind in KINDS}
    for kind in ("event", "file", "stream"):
        found[kind] = in_order(found[kind], UNORDERED_RELOADED if is_reloaded else UNORDERED)
    found["reply"].sort(key=lambda line: line.split("\t")[1])
    for kind in ("changed", "place", "info"):
        found[kind].sort()
    return found


def in_order(lines, unordered):
    """The lines, where those of one of these kinds that follow each other are sorted: there is no order among them."""
    found = []
    for kind, some in itertools.groupby(lines, lambda line: next((kind for kind in unordered if kind in line), None)):
        found += sorted(some) if kind else some
    return found


def differences(ours, theirs, is_reloaded=False):
    """The differences between one step of the simulated server and the real one's, as lines."""
    ours, theirs = sorted_out(ours, is_reloaded), sorted_out(theirs, is_reloaded)
    found = []
    for kind in KINDS:
        if ours[kind] != theirs[kind]:
            if kind in ("changed", "place", "info"):
                here = [line for line in ours[kind] if line not in theirs[kind]]
                there = [line for line in theirs[kind] if line not in ours[kind]]
            else:
                here, there = ours[kind], theirs[kind]
            found += [f"simulated  {line}" for line in here or [f"no {kind}"]]
            found += [f"real       {line}" for line in there or [f"no {kind}"]]
    return found
