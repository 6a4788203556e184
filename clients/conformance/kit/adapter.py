"""Talks with an adapter: lines of JSON, as PROTOCOL.md says."""

import collections
import itertools
import json
import os
import signal
import subprocess
import tempfile
import threading
import time

from harness.stopped import stop

#: The time limit of an answer that the adapter gives at once.
SOON = 20.0
#: The time limit for an adapter to end after its input has ended.
END = 15.0


class Refused(Exception):
    """The adapter answered with an error."""

    def __init__(self, op, error):
        super().__init__(f"{op}: {error.get('kind')}: {error.get('message')}")
        self.kind, self.message, self.error = error.get("kind"), error.get("message", ""), error


class Ended(AssertionError):
    """The adapter ended, or does not speak the protocol."""


class Asked:
    """A request that may be answered later."""

    def __init__(self, adapter, number, op):
        self.adapter, self.number, self.op = adapter, number, op
        self.began, self.ended, self.answer = time.monotonic(), None, None

    def is_answered(self):
        """True if the answer has arrived."""
        return self.answer is not None

    def result(self, limit=SOON):
        """Returns the answer; raises an error answer."""
        self.wait(limit)
        if "error" in self.answer:
            raise Refused(self.op, self.answer["error"])
        return self.answer["ok"]

    def kind(self, limit=SOON):
        """Returns "ok", or the kind of the error."""
        self.wait(limit)
        return self.answer["error"].get("kind") if "error" in self.answer else "ok"

    def wait(self, limit=SOON):
        """Waits for the answer."""
        self.adapter.until(lambda: self.answer is not None, f"{self.op} is answered", limit)

    @property
    def seconds(self):
        """Returns the time that it took."""
        return self.ended - self.began


class Adapter:
    """One adapter process."""

    def __init__(self, command, environment=None):
        self.errors = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
            env={**os.environ, **(environment or {})},
        )  # fmt: skip
        self.numbers = itertools.count(1)
        self.changed = threading.Condition()
        self.open_requests, self.events = {}, collections.deque()
        self.fault, self.features, self.drivers = None, frozenset(), ()
        self.has_ended = False
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    # Requests

    def ask(self, op, **members):
        """Sends a request, and returns it without waiting for the answer."""
        asked = Asked(self, next(self.numbers), op)
        self.open_requests[asked.number] = asked
        line = json.dumps({"id": asked.number, "op": op, **{k: v for k, v in members.items() if v is not None}})
        try:
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()
        except (OSError, ValueError):
            raise Ended(f"the adapter has ended before {op}\n{self.stderr()}") from None
        return asked

    def __call__(self, op, within=SOON, **members):
        """Sends a request and waits for its answer."""
        return self.ask(op, **members).result(within)

    def refusal(self, op, within=SOON, **members):
        """Sends a request that must be answered with an error; returns the error."""
        try:
            answer = self.ask(op, **members).result(within)
        except Refused as refused:
            return refused
        raise AssertionError(f"{op} is answered with {answer}, not with an error")

    # Events

    def told(self, event, limit=SOON, **members):
        """Waits for an event with these members; returns it, with `at`, the time of its arrival."""
        def found():
            return next((each for each in self.seen(event, **members)), None)

        self.until(found, f"the event {event} {members or ''}", limit)
        return found()

    def seen(self, event, **members):
        """Returns all such events that have arrived."""
        events = [each for each in list(self.events) if each.get("event") == event]
        return [each for each in events if all(each.get(name) == value for name, value in members.items())]

    def logged(self, *words, level="warning", limit=SOON, count=1):
        """Waits until lines of this level in its log contain all these words; returns their messages."""
        def found():
            return [each["message"] for each in self.seen("log", level=level) if all(w in each["message"] for w in words)]

        self.until(lambda: len(found()) >= count, f"{count} lines in the log ({level}) with {words}", limit)
        return found()

    def until(self, condition, what, limit=SOON):
        """Waits until the condition holds."""
        end = time.monotonic() + limit
        with self.changed:
            while not condition():
                if self.fault is not None:
                    raise Ended(f"{self.fault}, and not: {what}\n{self.stderr()}")
                left = end - time.monotonic()
                if left <= 0:
                    raise AssertionError(f"not within {limit:.0f} s: {what}")
                self.changed.wait(left)

    # Its end

    def close_input(self):
        """Ends its standard input."""
        try:
            self.process.stdin.close()
        except OSError:
            pass  # it has ended

    def end(self):
        """Ends its input, and checks that it ends well."""
        self.has_ended = True
        self.close_input()
        try:
            code = self.process.wait(END)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the adapter runs on {END:.0f} s after its input ended\n{self.stderr()}") from None
        assert code == 0, f"the adapter ended with status {code}\n{self.stderr()}"

    def kill(self):
        """Kills it, as a crash would."""
        self.has_ended = True
        for pid in reversed(self.pids()):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it ended with its parent
        self.process.wait(SOON)

    def pause(self):
        """Stops it, as a pause of its machine would."""
        stop(*self.pids())

    def go_on(self):
        """Resumes it."""
        for pid in self.pids():
            os.kill(pid, signal.SIGCONT)

    def pids(self):
        """Returns its process and that process's children: an adapter may be a script that starts the real one."""
        found = [self.process.pid]
        for pid in found:
            try:
                with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as children:
                    found += [int(child) for child in children.read().split()]
            except OSError:
                pass  # it has ended
        return found

    def stderr(self, size=3000):
        """Returns the end of what it wrote to its log."""
        # Not by seek: the adapter writes at this file's position.
        total = os.fstat(self.errors.fileno()).st_size
        return os.pread(self.errors.fileno(), size, max(0, total - size)).decode("utf-8", "replace")

    # Inside

    def _read(self):
        for line in self.process.stdout:
            at = time.monotonic()
            try:
                message = json.loads(line)
                assert isinstance(message, dict)
            except (ValueError, AssertionError):
                self._stop(f"the adapter wrote what is no JSON object: {line[:200]!r}")
                break
            with self.changed:
                self._take(message, at)
                self.changed.notify_all()
        self._stop("the adapter has closed its output")

    def _take(self, message, at):
        if "event" in message:
            self.events.append({**message, "at": at})
            return
        asked = self.open_requests.pop(message.get("id"), None)
        if asked is None:
            self.fault = f"the adapter answered what was not asked, or twice: {message}"
        elif ("ok" in message) == ("error" in message):
            self.fault = f"an answer has either ok or error: {message}"
        else:
            asked.ended, asked.answer = at, message

    def _stop(self, fault):
        with self.changed:
            self.fault = self.fault or fault
            self.changed.notify_all()
