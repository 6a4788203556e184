"""What may not have happened, and what must be so in the end."""

import time
from collections import Counter
from typing import NamedTuple

from .faults import drawn
from .injector import Injector

#: How many grants the clients get before the first fault, and after the last one.
GRANTS = 5


class Outcome(NamedTuple):
    """What a round did, and what was wrong."""

    topology: str
    mode: str
    seed: str
    #: How often each kind of fault was made, or could not be.
    made: dict
    refused: dict
    grants: int
    #: The errors that clients were told.
    told: dict
    #: Texts, one for each thing that was wrong.
    wrong: list
    seconds: float


def one_round(topology, seconds, note=lambda text: None, plan=None):
    """Injects faults under load for `seconds` seconds; returns what was wrong in the end."""
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
    """G1, G4, G7, and what else the topology promises."""
    found = [fault for load in topology.loads for fault in load.faults(topology.breaks)]
    found += [f"never answered: {request}" for load in topology.loads for request in load.unanswered]
    return found + topology.more_faults()


def told(topology):
    """The errors that clients were told, and how often."""
    return dict(sum((load.told for load in topology.loads), Counter()))
