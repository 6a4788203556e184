"""The waiters of a process for one lock, without a server."""

from __future__ import annotations

from redislock._line import Line, Waiter


def called(waiter: Waiter) -> bool:
    was_called = waiter.turn.is_set()
    waiter.turn.clear()
    return was_called


def a_line(link: object, number: int) -> tuple[Line, list[Waiter]]:
    line, waiters = Line(b"k", most=8), [Waiter(is_named=False) for _ in range(number)]
    for waiter in waiters:
        line.join(waiter)
        line.asked(waiter, link)
        called(waiter)
    return line, waiters


def test_a_waiter_that_has_to_ask_again_is_called_behind_one_that_has_not() -> None:
    line, waiters = a_line("old", 3)
    line.asked(waiters[1], "new")  # by itself, as its place would lapse
    called(waiters[2])
    assert line.is_behind(waiters[2])
    line.asked(waiters[0], "new")
    assert called(waiters[2]) and not line.is_behind(waiters[2])


def test_a_new_waiter_is_called_behind_one_that_asked_over_the_new_connection_first() -> None:
    line, (old, first) = a_line("old", 2)
    line.asked(first, "new")
    second = Waiter(is_named=False)
    line.join(second)
    assert line.is_behind(second)
    line.asked(old, "new")
    assert called(second) and not called(first) and not line.is_behind(second)
