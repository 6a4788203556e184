"""Runs cases in parallel, each in a process of its own, so that a case that hangs can be ended with all that it
started."""

import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import time
import traceback
from pathlib import Path

from .adapter import Refused
from .stage import Stage, Unsupported

PASS, FAIL, UNSUPPORTED = "pass", "fail", "unsupported"
#: The time that a case gets to clean up.
TIDY_SECONDS = 20.0
#: The most repetitions of failed cases in a run of CI.
REPEATED_MOST = 3


class Verdict:
    """The outcome of a case."""

    def __init__(self, word, reason="", notes=(), seconds=0.0):
        self.word, self.reason, self.notes, self.seconds = word, reason, list(notes), seconds


class TimeIsOver(BaseException):
    """The case has taken too long."""


def run_all(cases, command, driver, jobs):
    """Yields each case with its verdict, as they end. Heavy and long ones begin first, so that none runs alone at the
    end."""
    left = sorted(cases, key=lambda case: -case.weight)
    running = {}
    try:
        while left or running:
            while left and len(running) < jobs:
                case = left.pop(0)
                inlet, outlet = multiprocessing.Pipe(duplex=False)
                process = multiprocessing.Process(target=_be_a_case, args=[case, command, driver, outlet])
                process.start()
                outlet.close()
                running[inlet] = (case, process, time.monotonic())
            for inlet in multiprocessing.connection.wait(list(running), timeout=0.5):
                case, process, began = running.pop(inlet)
                yield case, _verdict(inlet, process, time.monotonic() - began)
            for case, process, began in running.values():
                if time.monotonic() - began > case.seconds + 2 * TIDY_SECONDS:
                    _end_group(process)
    finally:
        for case, process, _ in running.values():
            _end_group(process)


def may_repeat(what):
    """Returns whether cases that have failed run once more, and notes that they do: as scripts/twice, which see."""
    path = os.environ.get("REDISLOCK_REPEATED")
    if not path or len(Path(path).read_text(encoding="utf-8").splitlines()) >= REPEATED_MOST:
        return False
    with open(path, "a", encoding="utf-8") as notes:
        notes.write(f"the kit over {what}\n")
    return True


def _verdict(inlet, process, seconds):
    try:
        found = inlet.recv()
    except EOFError:
        found = Verdict(FAIL, "the case ended without a verdict")
    process.join(TIDY_SECONDS)
    if process.is_alive():
        _end_group(process)
    found.seconds = seconds
    return found


def _end_group(process):
    """Ends a case that hangs, with the servers and adapters that it started: they are its process group."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it has just ended
    process.join(TIDY_SECONDS)


def _be_a_case(case, command, driver, outlet):
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, _ring)
    signal.signal(signal.SIGTERM, _ring)
    outlet.send(judge(case, command, driver))
    outlet.close()
    sys.stdout.flush()
    # Threads of proxies may be left, but the case has ended.
    os._exit(0)


def _ring(*_):
    raise TimeIsOver


def judge(case, command, driver):
    """Runs one case."""
    stage = Stage(command, driver, case)
    signal.alarm(case.seconds)
    try:
        case.story(stage)
        stage.check_end()
        verdict = Verdict(PASS, notes=stage.notes)
    except Unsupported as missing:
        verdict = Verdict(UNSUPPORTED, str(missing))
    except TimeIsOver:
        verdict = Verdict(FAIL, f"it took more than {case.seconds} s\n{_where()}{_logs(stage)}", stage.notes)
    except (AssertionError, Refused) as failure:
        verdict = Verdict(FAIL, f"{failure or 'an assertion'}\n{_where()}{_logs(stage)}", stage.notes)
    except Exception:  # a fault of the kit, most likely
        verdict = Verdict(FAIL, traceback.format_exc() + _logs(stage), stage.notes)
    finally:
        signal.alarm(0)
    signal.alarm(int(TIDY_SECONDS))
    try:
        stage.clear()
    except (AssertionError, TimeIsOver, OSError) as failure:
        verdict = Verdict(FAIL, f"{verdict.reason}\nat the end: {failure!r}", stage.notes)
    signal.alarm(0)
    return verdict


def _where():
    """Returns the lines of the case that were running."""
    frames = traceback.extract_tb(sys.exc_info()[2])
    lines = [f"{frame.filename.rpartition('/')[2]}:{frame.lineno}: {frame.line}" for frame in frames]
    return "\n".join(line for line in lines if not line.startswith(("runner.py", "adapter.py", "limits.py")))


def _logs(stage):
    return "".join(f"\nan adapter's log: {adapter.stderr(800)}" for adapter in stage.adapters if adapter.stderr(1))
