"""The kinds of locks: readers and writers, semaphores."""

from . import case


@case(5)
def readers_and_a_writer(stage):
    """Readers hold a lock together; a writer waits for all, and later readers wait for the writer."""
    _, _, adapter = stage.single()
    for number in range(3):
        adapter("acquire", hold=f"r{number}", name="k", kind="read", wait_ms=0)
    writer = adapter.ask("acquire", hold="w", name="k", kind="write", wait_ms=20_000)
    stage.waiting("k", 1)
    assert adapter.refusal("acquire", hold="r3", name="k", kind="read", wait_ms=0).kind == "LockTimeout"
    late = adapter.ask("acquire", hold="r4", name="k", kind="read", wait_ms=20_000)
    stage.waiting("k", 2)
    for number in range(3):
        adapter("release", hold=f"r{number}")
    token = writer.result()["token"]
    assert not late.is_answered()
    adapter("release", hold="w")
    assert late.result()["token"] > token
    adapter("release", hold="r4")


@case(5)
def a_semaphore(stage):
    """Three hold it, the fourth waits until one of them releases it, and each is renewed independently."""
    _, _, adapter = stage.single()
    for number in range(3):
        adapter("acquire", hold=f"h{number}", name="k", kind="semaphore", limit=3, lease_ms=2500, wait_ms=0)
    refused = adapter.refusal("acquire", hold="no", name="k", kind="semaphore", limit=3, wait_ms=0)
    assert refused.kind == "LockTimeout"
    asked = adapter.ask("acquire", hold="h3", name="k", kind="semaphore", limit=3, lease_ms=2500, wait_ms=20_000)
    stage.waiting("k", 1)
    stage.stays(lambda: len(stage.info("k")["holders"]) == 3 and not asked.is_answered(), "three hold it", 5)
    adapter("release", hold="h1")
    asked.result()
    assert not adapter.seen("lost"), f"a loss was told: {adapter.seen('lost')}"
    for number in (0, 2, 3):
        adapter("release", hold=f"h{number}")
