"""Reads callgrind's output: the instructions of each function alone, and together with the functions that it called.

The format is described in the manual of valgrind, "Callgrind Format Specification". This module reads only names (each
is written in full once, then by number), costs, and calls.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

NAMED = re.compile(r"\((\d+)\)(?: (.*))?")
POSITIONS = {"fl", "fi", "fe", "cfi", "cfl"}


@dataclass(frozen=True)
class Function:
    """A function of an object: of the server, the module, a library."""

    object: str
    name: str


@dataclass
class Profile:
    """Instructions by function, and by pairs of caller and callee."""

    own: Counter[Function] = field(default_factory=Counter)
    calls: Counter[tuple[Function, Function]] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        return self.own.total()


class Reader:
    """Goes through the lines of one file."""

    def __init__(self) -> None:
        self.names: dict[tuple[str, str], str] = {}
        self.profile = Profile()
        self.object = ""
        self.function = Function("", "")
        self.callee_object = ""
        self.callee: Function | None = None
        self.is_call = False

    def name(self, kind: str, text: str) -> str:
        found = NAMED.match(text)
        if not found:
            return text
        number, full = found.groups()
        if full is not None:
            self.names[kind, number] = full
        return self.names.get((kind, number), number)

    def line(self, line: str) -> None:
        key, is_named, text = line.partition("=")
        if is_named and key.isalpha():
            self.named(key, text)
        elif line and (line[0].isdigit() or line[0] in "+-*"):
            self.cost(line.split())

    def named(self, key: str, text: str) -> None:
        if key == "ob":
            self.object = self.name("ob", text)
        elif key == "fn":
            self.function = Function(self.object, self.name("fn", text))
        elif key == "cob":
            self.callee_object = self.name("ob", text)
        elif key == "cfn":
            self.callee = Function(self.callee_object or self.object, self.name("fn", text))
            self.callee_object = ""
        elif key == "calls":
            self.is_call = True
        elif key in POSITIONS:
            self.name("fl", text)

    def cost(self, words: list[str]) -> None:
        if len(words) < 2:
            return
        if self.is_call and self.callee:
            self.profile.calls[self.function, self.callee] += int(words[1])
        else:
            self.profile.own[self.function] += int(words[1])
        self.is_call = False


def read(path: Path) -> Profile:
    reader = Reader()
    with path.open(errors="replace") as file:
        for line in file:
            reader.line(line.rstrip("\n"))
    return reader.profile
