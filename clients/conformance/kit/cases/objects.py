"""A lock object of the library that several tasks or threads use."""

from ..stage import as_dictionary
from . import case


@case(6)
def blocks_of_one_lock_object_give_up_their_own_holds(stage):
    """Two blocks of one lock object run in parallel: each has its own hold, and ends only that."""
    _, _, adapter = stage.single()
    options = {"name": "k", "kind": "semaphore", "limit": 2, "lock": "object", "wait_ms": 10_000}
    first = adapter.ask("run", hold="h1", body_ms=3000, **options)
    stage.eventually(lambda: len(tokens(stage, "k")) == 1, "the first block has a hold")
    second = adapter.ask("run", hold="h2", body_ms=6000, **options)
    stage.eventually(lambda: len(tokens(stage, "k")) == 2, "the second block has one, too")
    ended = first.result()["token"]
    (live,) = tokens(stage, "k")
    assert live > ended, "the end of the first block has ended the hold of the second"
    stage.stays(lambda: second.is_answered() or tokens(stage, "k") == [live], "the second block has its hold", 0.8)
    assert second.result()["token"] == live, "the second block had the hold of another"
    stage.free_soon("k")


@case(1, 6)
def one_lock_object_is_not_had_twice(stage):
    """A lock object whose lock is held is acquired again: that is another owner, which fails; the hold stays."""
    _, _, adapter = stage.single()
    token = adapter("acquire", hold="h1", name="k", lock="object", wait_ms=2500)["token"]
    assert adapter.refusal("acquire", hold="h2", name="k", lock="object", wait_ms=2500).kind == "LockTimeout"
    assert tokens(stage, "k") == [token], "the second acquire has ended the hold of the first"
    adapter("check", hold="h1")
    adapter("release", hold="h1")
    stage.free_soon("k")


def tokens(stage, name):
    """Returns the tokens of all holders."""
    return [as_dictionary(holder)["token"] for holder in stage.info(name).get("holders", [])]
