"""The violations that must not have happened, and the state that must hold in the end."""

import time
from collections import Counter
from typing import NamedTuple

from .faults import drawn
from .injector import Injector

#: The number of grants to clients before the first fault, and after the last one.
GRANTS = 5


class Outcome(NamedTuple):
    """The summary of a round, and its violations."""

    topology: str
    mode: str
    seed: str
    #: The number of faults of each kind that were made, or could not be.
    made: dict
    refused: dict
    grants: int
    #: The errors that clients received.
    told: dict
    #: Texts, one for each thing that was wrong.
    wrong: list
    seconds: float


def one_round(topology, seconds, note=lambda text: None, plan=None):
    """Injects faults under load for `seconds` seconds; returns the violations."""
    plan = plan or drawn(topology.seed, topology.kinds, topology.size, **topology.details)
    injector = topology.injector = Injector(topology, plan, note)
    began, wrong = time.monotonic(), []
    try:
        with topology.at_work():
            topology.goes_on(GRANTS)
            injector.run(seconds)
            note("all faults are over")
            topology.heal()
            topology.goes_on(GRANTS)
            wrong += topology.idles()
        topology.comes_to_rest()
    except AssertionError as failure:
        wrong.append(f"{failure}")
    finally:
        injector.end_all()
    wrong += verdict(topology)
    made, refused = dict(injector.made), dict(injector.refused)
    words = topology.name, topology.mode, topology.seed, made, refused, topology.grants(), told(topology)
    return Outcome(*words, wrong, time.monotonic() - began)


def verdict(topology):
    """G1, G4, G7, and the further promises of the topology."""
    found = [fault for load in topology.loads for fault in load.faults(topology.breaks)]
    found += [f"never answered: {request}" for load in topology.loads for request in load.unanswered]
    return found + topology.more_faults()


def told(topology):
    """The errors that clients received, and their counts."""
    return dict(sum((load.told for load in topology.loads), Counter()))
