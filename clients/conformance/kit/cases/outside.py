"""Points 8 and 9: forks, what operators see, and that nothing grows."""

from . import case

#: The locks before the first measurement, the rounds after it, each followed by a measurement, and the locks in a
#: round.
WARM, ROUNDS, ROUND = 4000, 3, 2000
#: Half a kilobyte for each lock.
LEAK_KB = ROUND // 2


@case(8, needs=("fork",))
def a_child_has_no_holds(stage):
    """A forked child can neither use nor release its parent's holds, and the parent continues."""
    _, _, adapter = stage.single()
    got = adapter("acquire", hold="h", name="k", lease_ms=2000, wait_ms=0)
    answer = adapter("fork", hold="h")
    assert answer["child"] == "refused", f"the child was not refused: {answer}"
    stage.stays(lambda: stage.server.admin("LOCK.FENCE", "k", got["token"]) == 1, "the parent holds it", 3)
    adapter("check", hold="h")
    assert not adapter.seen("lost"), "a loss was told"
    adapter("release", hold="h")


@case(9, needs=("stats",))
def hooks_see_every_event(stage):
    """The library's hooks have seen each grant, timeout, loss, release and wait."""
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
def an_owners_locks_are_listed(stage):
    """LOCK.HELDBY through the library."""
    _, _, adapter = stage.single()
    owner = adapter("acquire", hold="h", names=["a", "b"], wait_ms=0)["owner"]
    assert sorted(adapter("held", owner=owner)["names"]) == ["a", "b"]
    adapter("release", hold="h")
    assert adapter("held", owner=owner)["names"] == []


@case(3, 9, seconds=210, weight=10)
def ten_thousand_locks_leave_no_trace(stage):
    """Ten thousand locks are acquired and released: threads, connections and memory do not grow with them."""
    _, door, adapter = stage.single()
    adapter("cycle", name="k", wait_ms=0, times=WARM, within=120)
    seen, seconds = [adapter("threads")], 0.0
    for _ in range(ROUNDS):
        asked = adapter.ask("cycle", name="k", wait_ms=0, times=ROUND)
        assert asked.result(90)["times"] == ROUND
        seconds += asked.seconds
        seen.append(adapter("threads"))
    stage.note(f"{1e6 * seconds / (ROUNDS * ROUND):.0f} us each; before {seen[0]}, after {seen[-1]}")
    assert seen[-1]["threads"] <= seen[0]["threads"] + 1, f"threads grow: {seen}"
    assert seen[-1]["connections"] <= seen[0]["connections"] + 1, f"connections grow: {seen}"
    memory = [each["memory_kb"] for each in seen]
    # Uncollected garbage grows now and then; data that is kept for each lock grows each time.
    grown = [after - before for before, after in zip(memory, memory[1:])]
    assert min(grown) < LEAK_KB, f"memory grew by {grown} kB over {ROUND} locks each"
    assert stage.server.info("redislock")["redislock_grants"] == str(WARM + ROUNDS * ROUND)
    assert door.most <= 20
