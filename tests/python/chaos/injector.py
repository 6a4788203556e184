"""Makes one fault after the other, and ends those whose time has passed."""

import time
from collections import Counter
from itertools import islice
from typing import Callable, NamedTuple

from .acts import TROUBLE

#: At most this many faults last at the same time.
ACTIVE_MAX = 2
#: After this many of them the servers are left alone until this many locks were granted, or for this long.
BURST, CALM_GRANTS, CALM_SECONDS = 6, 25, 6.0
#: Faults during which a server does not answer.
DEAF = ("pause", "kill")


class Active(NamedTuple):
    """A fault that lasts."""

    fault: object
    node: object
    until: float
    end: Callable


class Injector:
    """Makes the faults of a plan, no two that last at one server at a time.

    The topology's `acts` implement each kind: they receive the fault and its server, and return the function that ends
    it, or None.
    """

    def __init__(self, topology, plan, note=lambda text: None):
        self.topology, self.plan, self.note = topology, plan, note
        self.active = []
        self.made, self.refused = Counter(), Counter()

    def run(self, seconds):
        """Injects bursts of faults for `seconds` seconds, at least one; then ends all of them."""
        end = time.monotonic() + seconds
        while True:
            for fault in islice(self.plan, BURST):
                self.rest(fault.rest)
                self.inject(fault)
            self.calm()
            if time.monotonic() >= end:
                return

    def calm(self):
        """Lets all faults end, and clients get on."""
        while self.active:
            self.rest(0.01)
        goal, end = self.topology.grants() + CALM_GRANTS, time.monotonic() + CALM_SECONDS
        while self.topology.grants() < goal and time.monotonic() < end:
            time.sleep(0.02)

    def rest(self, seconds):
        """Waits for `seconds` seconds, and until there is room for one more fault."""
        end = time.monotonic() + seconds
        while time.monotonic() < end or len(self.active) >= ACTIVE_MAX:
            self.end_those(lambda active: active.until <= time.monotonic())
            time.sleep(0.01)

    def inject(self, fault):
        """Makes this fault, if its server is in a state in which it can be had."""
        node = self.target(fault)
        while self.is_busy(node, fault):
            self.rest(0.01)
            node = self.target(fault)
        self.note(f"{fault}, which is {self.topology.nodes.index(node)}")
        try:
            end = self.topology.acts[fault.kind](fault, node)
        except TROUBLE as error:
            self.note(f"refused: {error}")
            self.refused[fault.kind] += 1
            return
        self.made[name_of(fault)] += 1
        if end is not None:
            self.active.append(Active(fault, node, time.monotonic() + fault.seconds, end))

    def target(self, fault):
        """The server that it hits: one that answers us."""
        nodes = self.topology.nodes
        hearing = [node for node in nodes[fault.at:] + nodes[:fault.at] if not self.is_deaf(node)]
        if fault.at_primary:
            hearing.sort(key=self.topology.is_primary, reverse=True)
        return hearing[0] if hearing else nodes[fault.at]

    def is_busy(self, node, fault):
        """Returns whether the fault must wait until another one has ended."""
        return self.is_deaf(node) or fault.seconds and any(active.node is node for active in self.active)

    def is_deaf(self, node):
        """Returns whether it is stopped or dead."""
        return any(active.node is node and active.fault.kind in DEAF for active in self.active)

    def hearing(self):
        """All servers that are neither stopped nor dead."""
        return [node for node in self.topology.nodes if not self.is_deaf(node)]

    def end_all(self):
        """Ends all that last."""
        self.end_those(lambda active: True)

    def end_those(self, is_due):
        """Ends some of those that last."""
        for active in [active for active in self.active if is_due(active)]:
            self.note(f"over: {active.fault}")
            active.end()
            self.active.remove(active)


def name_of(fault):
    """The name under which it is counted."""
    return fault.kind if isinstance(fault.detail, (int, float, type(None))) else f"{fault.kind} {fault.detail}"
