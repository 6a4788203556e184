"""Points 8 and 9: forks, what operators see, and that nothing grows."""

from . import case

CYCLES = 10_000


@case(8, needs=("fork",))
def a_child_has_no_holds(stage):
    """A forked child can neither use nor give up what its parent holds, and the parent goes on."""
    _, _, adapter = stage.single()
    got = adapter("acquire", hold="h", name="k", lease_ms=2000, wait_ms=0)
    answer = adapter("fork", hold="h")
    assert answer["child"] == "refused", f"the child was not refused: {answer}"
    stage.stays(lambda: stage.server.admin("LOCK.FENCE", "k", got["token"]) == 1, "the parent holds it", 3)
    adapter("check", hold="h")
    assert not adapter.seen("lost"), "a loss was told"
    adapter("release", hold="h")


@case(9, needs=("stats",))
def hooks_count(stage):
    """The library's hooks have seen each grant, each time-out, each loss, each release and each wait."""
    _, _, adapter = stage.single()
    for number in range(3):
        adapter("acquire", hold=f"h{number}", name=f"k{number}", wait_ms=0)
    adapter("release", hold="h0")
    stage.server.admin("DEL", "k1")
    adapter.told("lost", hold="h1", limit=30)
    adapter.ask("release", hold="h1").kind()
    for wait_ms in (0, 200):
        assert adapter.refusal("acquire", hold=f"t{wait_ms}", name="k2", wait_ms=wait_ms).kind == "LockTimeout"
    asked = adapter.ask("acquire", hold="w", name="k2", wait_ms=20_000)
    stage.waiting("k2", 1)
    adapter("release", hold="h2")
    asked.result()
    adapter("release", hold="w")
    found = adapter("stats")
    expected = {"grants": 4, "timeouts": 2, "losses": 1, "releases": 3}
    assert {name: found.get(name) for name in expected} == expected, f"{found}, and not {expected}"
    assert 1 <= found.get("waits", 0) <= 6, f"waits: {found}"


@case(9, needs=("held",))
def what_an_owner_holds(stage):
    """LOCK.HELDBY through the library."""
    _, _, adapter = stage.single()
    owner = adapter("acquire", hold="h", names=["a", "b"], wait_ms=0)["owner"]
    assert sorted(adapter("held", owner=owner)["names"]) == ["a", "b"]
    adapter("release", hold="h")
    assert adapter("held", owner=owner)["names"] == []


@case(3, 9, seconds=210, weight=10)
def ten_thousand_locks_leave_no_trace(stage):
    """Ten thousand locks are taken and given up: no more threads, connections or memory than after two thousand."""
    _, door, adapter = stage.single()
    adapter("cycle", name="k", wait_ms=0, times=2000, within=90)
    before = adapter("threads")
    asked = adapter.ask("cycle", name="k", wait_ms=0, times=CYCLES - 2000)
    assert asked.result(120)["times"] == CYCLES - 2000
    after = adapter("threads")
    stage.note(f"{1e6 * asked.seconds / (CYCLES - 2000):.0f} us each; before {before}, after {after}")
    assert after["threads"] <= before["threads"] + 1, f"threads: {before['threads']}, then {after['threads']}"
    assert after["connections"] <= before["connections"] + 1, "connections grow"
    grown = after["memory_kb"] - before["memory_kb"]
    # A leak of 1 kB for each lock would be 8 MB.
    assert grown <= 6000, f"memory grew by {grown} kB over {CYCLES - 2000} locks"
    assert stage.server.info("redislock")["redislock_grants"] == str(CYCLES)
    assert door.most <= 20
