"""Histories in files, and the program that judges them (docs/internals/history-checker.md)."""

import io
import json
import re
import subprocess
from math import inf
from pathlib import Path

import pytest

from checkers import LOST, MANY, UNANSWERED, Request, Seen, keep
from checkers.__main__ import main
from checkers.journal import NotAHistory, read, write
from harness.server import ROOT

PAGE = ROOT / "docs" / "internals" / "history-checker.md"

HISTORY = [
    Request("acquire", ("door",), "minted", 0.0, 0.1, 7, lease=1.0, connection="c"),
    Request("acquire", ("pool",), "b", 0.2, 0.9, None, mode="limit 3", lease=1.0, block=0.5, reentrant=True),
    Request("acquire", ("gate",), "w", 0.2, 0.9, 9, lease=1.0, block=inf, place=0.5, ephemeral=0.0, keepalive=True),
    Request("macquire", ("door", "gate"), "d", 0.3, 0.4, error="DEADLOCK this wait", lease=1.0, block=1.0),
    Request("info", ("door",), "x", 0.3, 0.35, Seen("exclusive", (("minted", 7, 1),), (("d", "blocked"),), 1)),
    Request("info", ("nothing",), "x", 0.3, 0.35, None),
    Request("heldby", (), "minted", 0.4, 0.5, [("door", "held", "exclusive", 7)]),
    Request("use", ("door",), "minted", 0.4, 0.5, 1, token=7),
    Request("acquire", ("door",), "e", 0.5, inf, error=LOST, lease=0.1, gone=0.6),
    Request("acquire", ("door",), "f", 0.5, inf, error=UNANSWERED, lease=0.1, block=inf),
    Request("close", (), "minted", 0.8, 0.8, connection="c"),
    Request("end", (), "", 2.0, 2.1, {"left": {}, "permits": {}, "agrees": True, "counted": {}}),
]  # fmt: skip


def text_of(history, **known):
    file = io.StringIO()
    write(history, file, **known)
    return file.getvalue()


def test_what_is_written_is_read_again():
    text = text_of(HISTORY)
    requests, servers = read(text.splitlines())
    assert servers == "one"
    assert sorted(requests, key=str) == sorted(HISTORY, key=str)
    times = [event["time"] for event in map(json.loads, text.splitlines()[1:])]
    assert times == sorted(times)


def test_a_load_leaves_its_history_at_the_given_path(tmp_path, monkeypatch):
    monkeypatch.delenv("REDISLOCK_HISTORY", raising=False)
    assert keep(HISTORY, "nothing") is None
    monkeypatch.setenv("REDISLOCK_HISTORY", str(tmp_path / "new"))
    path = keep(HISTORY, "a load/of [kinds]")
    assert path.name == "a-load-of-kinds-.jsonl"
    assert path.read_text() == text_of(HISTORY)


@pytest.mark.parametrize(
    "lines, reason",
    [
        ("", "not even a first line"),
        ("{}", "line 1: KeyError"),
        ('{"format": 2, "servers": "one"}', "line 1: the first line must be"),
        ('{"format": 1, "servers": "few"}', "line 1: the first line must be"),
        ("HEAD\nnonsense", "line 2: JSONDecodeError"),
        ('HEAD\n{"event": "crash"}', "line 2: crash is neither"),
        ('HEAD\n{"event": "complete", "id": 1, "time": 1, "reply": 1}', "line 2: KeyError: 1"),
        ("HEAD\nASKED\nASKED", "line 3: 1 was invoked before"),
        ('HEAD\nASKED\n{"event": "complete", "id": 1, "time": 0, "reply": 1}', "line 3: 1 was completed before"),
        ('HEAD\nASKED\n{"event": "complete", "id": 1, "time": 2}', "line 3: KeyError: 'reply'"),
    ],
)
def test_what_is_no_history_is_refused_with_its_line(lines, reason):
    asked = '{"event": "invoke", "id": 1, "time": 1, "command": "fence", "keys": ["door"], "owner": "a"}'
    lines = lines.replace("HEAD", '{"format": 1, "servers": "one"}').replace("ASKED", asked)
    with pytest.raises(NotAHistory, match=re.escape(reason)):
        read(lines.splitlines())


def test_the_program_says_what_is_wrong(tmp_path, capsys):
    good, bad, none = (tmp_path / name for name in ("good", "bad", "none"))
    good.write_text(text_of(HISTORY[:1]))
    bad.write_text(text_of([HISTORY[0], HISTORY[0]._replace(owner="other", sent=0.2, answered=0.3, reply=8)]))
    none.write_text("nonsense")
    assert main([str(good)]) == 0
    assert main([str(good), str(bad)]) == 1
    assert "two holders" in capsys.readouterr().out
    assert main([str(none)]) == main([str(tmp_path / "missing")]) == main([]) == 2
    program = ROOT / "scripts" / "check-history"
    ran = subprocess.run([program, "-"], input=bad.read_text(), capture_output=True, text=True, timeout=60)
    assert ran.returncode == 1 and "two holders" in ran.stdout, ran


def test_a_history_of_many_servers_is_judged_by_what_clients_may_rely_on(tmp_path, capsys):
    lives_on = [
        Request("acquire", ("door",), "a", 0.0, 0.1, 7, lease=0.5),
        Request("macquire", ("gate", "door"), "b", 0.6, 0.7, 8, lease=0.5),
        Request("renew", ("door",), "a", 0.65, 0.75, 0, lease=0.5),
    ]
    for history, code in ((lives_on, 0), ([lives_on[0], lives_on[1]._replace(sent=0.2, answered=0.3)], 1)):
        path = tmp_path / "many"
        path.write_text(text_of(history, servers=MANY))
        assert main([str(path)]) == code, capsys.readouterr().out


def test_the_example_of_the_page_is_a_history(tmp_path):
    text = Path(PAGE).read_text()
    example = re.search(r"```json\n(.*?)```", text, re.S).group(1)
    requests, _ = read(example.strip().splitlines())
    assert len(requests) >= 4
    path = tmp_path / "example"
    path.write_text(example)
    assert main([str(path)]) == 1, "the page says that it has a fault"
