"""Histories as files: one line of JSON for each invocation and each completion, in the order of time.

The format is described in docs/internals/history-checker.md. A load writes its history to the path in
REDISLOCK_HISTORY, for `scripts/check-history` to judge; another program's will do too.
"""

import json
import os
import re
from math import inf
from pathlib import Path

from .evidence import EXCLUSIVE, LOST, UNANSWERED, Request, Seen

FORMAT = 1
#: One server decides at any time, or several that may not know of each other.
ONE, MANY = "one", "many"

#: The fields of an invocation that are written only if they are set. In seconds; endless is null.
SAID = {
    "mode": EXCLUSIVE, "lease": 0.0, "place": 0.0, "reentrant": False, "ephemeral": None,
    "keepalive": False, "token": None, "connection": "",
}  # fmt: skip


class NotAHistory(Exception):
    """The faults of a file, and their lines."""


# Writing


def keep(requests, name, servers=ONE):
    """Writes a history into the directory that REDISLOCK_HISTORY names, if it names one."""
    directory = os.environ.get("REDISLOCK_HISTORY")
    if not directory:
        return None
    path = Path(directory) / f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', name)}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        write(requests, file, servers)
    return path


def write(requests, file, servers=ONE):
    """Writes a history, in the order of time."""
    events = []
    for number, request in enumerate(requests):
        events.append((request.sent, 0, invocation(number, request)))
        done = completion(number, request)
        if done is not None:
            events.append((done["time"], 1, done))
    print(json.dumps({"format": FORMAT, "servers": servers}), file=file)
    for _, _, event in sorted(events, key=lambda event: event[:2]):
        print(json.dumps(event), file=file)


def invocation(number, request):
    """What was asked."""
    event = {"event": "invoke", "id": number, "time": request.sent, "command": request.command}
    event |= {"keys": list(request.keys), "owner": request.owner}
    event |= {name: getattr(request, name) for name, usual in SAID.items() if getattr(request, name) != usual}
    if request.block is not None:
        event["block"] = None if request.block == inf else request.block
    return event


def completion(number, request):
    """The reply; None if there never was one."""
    if request.error == UNANSWERED or (request.error == LOST and request.gone == inf):
        return None
    event = {"event": "complete", "id": number, "time": request.answered}
    if request.error == LOST:
        return event | {"time": request.gone, "lost": True}
    if request.error:
        return event | {"error": request.error}
    reply = request.reply
    if isinstance(reply, Seen):
        reply = reply._asdict()
    if request.is_granted:
        event["owner"] = request.owner  # the server may have minted it
    return event | {"reply": reply}


# Reading


def read(lines):
    """A history: (requests, whether one server decides or many). Reports its faults."""
    head, open_requests, requests = None, {}, []
    for number, line in enumerate(lines, 1):
        try:
            event = json.loads(line)
            if head is None:
                head = header(event)
            elif event["event"] == "invoke":
                if event["id"] in open_requests:
                    raise NotAHistory(f"{event['id']} was invoked before, and not completed")
                open_requests[event["id"]] = invoked(event)
            elif event["event"] == "complete":
                requests.append(completed(open_requests.pop(event["id"]), event))
            else:
                raise NotAHistory(f"{event['event']} is neither invoke nor complete")
        except NotAHistory as reason:
            raise NotAHistory(f"line {number}: {reason}") from None
        except (ValueError, KeyError, TypeError) as reason:
            raise NotAHistory(f"line {number}: {type(reason).__name__}: {reason}") from None
    if head is None:
        raise NotAHistory("there is not even a first line")
    requests += [r._replace(error=UNANSWERED, answered=inf) for r in open_requests.values()]
    return requests, head


def header(event):
    """The first line's statement about the servers."""
    if event["format"] != FORMAT or event["servers"] not in (ONE, MANY):
        raise NotAHistory(f"the first line must be of format {FORMAT}, and servers one or many")
    return event["servers"]


def invoked(event):
    """A request that has no answer yet."""
    said = {name: event[name] for name in SAID if name in event}
    if "block" in event:
        said["block"] = inf if event["block"] is None else float(event["block"])
    return Request(event["command"], tuple(event["keys"]), event["owner"], float(event["time"]), inf, **said)


def completed(request, event):
    """The request with its answer."""
    answered = float(event["time"])
    if answered < request.sent:
        raise NotAHistory(f"{event['id']} was completed before it was invoked")
    if event.get("lost"):
        return request._replace(error=LOST, gone=answered)
    if "error" in event:
        return request._replace(answered=answered, error=event["error"])
    reply = event["reply"]
    if request.command == "info" and reply is not None:
        shown = (tuple(map(tuple, reply[name])) for name in ("holders", "queue"))
        reply = Seen(reply["kind"], *shown, reply.get("holds", 0))
    if request.command == "heldby":
        reply = [tuple(row) for row in reply]
    return request._replace(answered=answered, reply=reply, owner=event.get("owner", request.owner))
