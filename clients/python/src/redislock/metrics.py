"""Hooks for Prometheus and OpenTelemetry, whose libraries are extras: redislock[prometheus], redislock[opentelemetry].

Lock names are not labels, because there may be millions of them. For Prometheus, `label` turns a name into a label: by
default the part before the colon.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from .hooks import Hooks


def before_the_colon(name: str) -> str:
    """Returns the part of a name before the colon: "invoice" of "invoice:42"."""
    return name.partition(":")[0]


class PrometheusHooks(Hooks):
    """Counts and histograms for prometheus_client."""

    def __init__(self, registry: Any = None, label: Callable[[str], str] = before_the_colon) -> None:
        import prometheus_client

        known = {} if registry is None else {"registry": registry}
        self._label = label
        self._waits = prometheus_client.Histogram(
            "redislock_client_wait_seconds", "Time from a request to its end", ["lock", "outcome"], **known
        )
        self._holds = prometheus_client.Histogram(
            "redislock_client_hold_seconds", "Time from a grant to its end", ["lock", "outcome"], **known
        )

    def granted(self, name: str, waited: float) -> None:
        self._waits.labels(self._label(name), "granted").observe(waited)

    def timed_out(self, name: str, waited: float) -> None:
        self._waits.labels(self._label(name), "timeout").observe(waited)

    def failed(self, name: str, waited: float, error: BaseException) -> None:
        self._waits.labels(self._label(name), "error").observe(waited)

    def released(self, name: str, held: float) -> None:
        self._holds.labels(self._label(name), "released").observe(held)

    def detached(self, name: str, held: float) -> None:
        self._holds.labels(self._label(name), "detached").observe(held)

    def lost(self, name: str, held: float, reason: str) -> None:
        self._holds.labels(self._label(name), f"lost:{reason}").observe(held)

    def forgotten(self, name: str, held: float) -> None:
        self._holds.labels(self._label(name), "forgotten").observe(held)


#: Bucket bounds in seconds, of waits and of holds.
_WAITS = (0.001, 0.005, 0.025, 0.1, 0.5, 1, 5, 10, 30, 60, 300)
_HOLDS = (0.001, 0.01, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800, 3600)


class OpenTelemetryHooks(Hooks):
    """Metrics of waits, holds and renewals for OpenTelemetry, and a span for each wait and each hold.

    Lock names are not attributes. If you set a separator, `redislock.lock.group` is the part of the name before it.
    `attributes` are added to everything that is recorded, for example `server.address`.

    The spans of a wait and of its hold are children of the span in which the lock was acquired.
    """

    def __init__(
        self,
        *,
        separator: str | None = None,
        attributes: Mapping[str, str | int] | None = None,
        meter: Any = None,
        tracer: Any = None,
    ) -> None:
        from opentelemetry import context, metrics, trace

        meter = meter or metrics.get_meter("redislock")
        self._tracer, self._trace, self._context = tracer or trace.get_tracer("redislock"), trace, context
        self._separator, self._attributes = separator, dict(attributes or {})
        self._guard = threading.Lock()
        #: The grants of the holds of each name: their times and contexts.
        self._held: dict[str, list[tuple[float, Any]]] = {}
        name, waits, holds = "redislock.client", list(_WAITS), list(_HOLDS)
        self._waits = meter.create_histogram(
            f"{name}.wait.duration", "s", "Time from a request to its end", explicit_bucket_boundaries_advisory=waits
        )
        self._holds = meter.create_histogram(
            f"{name}.hold.duration", "s", "Time from a grant to its end", explicit_bucket_boundaries_advisory=holds
        )
        self._waiters = meter.create_up_down_counter(f"{name}.waiter.count", "{waiter}", "Pending requests")
        self._holders = meter.create_up_down_counter(f"{name}.hold.count", "{hold}", "Holds")
        self._failures = meter.create_counter(f"{name}.renewal.failures", "{renewal}", "Failed renewals")

    def _about(self, name: str, error: BaseException | None = None) -> dict[str, Any]:
        found: dict[str, Any] = dict(self._attributes)
        if self._separator:
            found["redislock.lock.group"] = name.partition(self._separator)[0]
        if error is not None:
            found["error.type"] = type(error).__name__
            if host := getattr(error, "host", ""):
                found["server.address"], found["server.port"] = host, getattr(error, "port", 0)
        return found

    def _end(self, what: Any, name: str, seconds: float, context: Any, more: dict[str, Any]) -> None:
        """Records a duration and a span."""
        attributes = self._about(name) | more
        what.record(seconds, attributes)
        now, kind = time.time_ns(), "wait" if what is self._waits else "hold"
        span = self._tracer.start_span(
            f"redislock.client.{kind}", context=context, attributes=attributes, start_time=now - int(seconds * 1e9)
        )
        if more["redislock.outcome"] in ("error", "lost"):
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR))
        span.end(now)

    def _end_wait(self, name: str, waited: float, more: dict[str, Any]) -> None:
        self._waiters.add(-1, self._about(name))
        self._end(self._waits, name, waited, None, more)

    def _end_hold(self, name: str, held: float, more: dict[str, Any]) -> None:
        granted = time.monotonic() - held
        with self._guard:
            known = self._held[name]
            nearest = min(known, key=lambda each: abs(each[0] - granted))
            known.remove(nearest)
            if not known:
                del self._held[name]
        self._holders.add(-1, self._about(name))
        self._end(self._holds, name, held, nearest[1], more)

    def requested(self, name: str) -> None:
        self._waiters.add(1, self._about(name))

    def adopted(self, name: str) -> None:
        with self._guard:
            self._held.setdefault(name, []).append((time.monotonic(), self._context.get_current()))
        self._holders.add(1, self._about(name))

    def granted(self, name: str, waited: float) -> None:
        self.adopted(name)
        self._end_wait(name, waited, {"redislock.outcome": "granted"})

    def timed_out(self, name: str, waited: float) -> None:
        self._end_wait(name, waited, {"redislock.outcome": "timeout"})

    def failed(self, name: str, waited: float, error: BaseException) -> None:
        self._end_wait(name, waited, {**self._about(name, error), "redislock.outcome": "error"})

    def released(self, name: str, held: float) -> None:
        self._end_hold(name, held, {"redislock.outcome": "released"})

    def detached(self, name: str, held: float) -> None:
        self._end_hold(name, held, {"redislock.outcome": "detached"})

    def lost(self, name: str, held: float, reason: str) -> None:
        self._end_hold(name, held, {"redislock.outcome": "lost", "redislock.loss.reason": reason})

    def forgotten(self, name: str, held: float) -> None:
        self._end_hold(name, held, {"redislock.outcome": "forgotten"})

    def renewal_failed(self, name: str, error: Exception) -> None:
        self._failures.add(1, self._about(name, error))
