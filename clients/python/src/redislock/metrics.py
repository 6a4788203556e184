"""Hooks for Prometheus and OpenTelemetry, whose libraries are extras: redislock[prometheus], redislock[opentelemetry].

Names of locks are no labels, for there may be millions. `label` makes one of a name, as its part before the colon.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .hooks import Hooks


def before_the_colon(name: str) -> str:
    """The part of a name that says what is locked: invoice, of invoice:42."""
    return name.partition(":")[0]


class PrometheusHooks(Hooks):
    """Counts and histograms for prometheus_client."""

    def __init__(self, registry: Any = None, label: Callable[[str], str] = before_the_colon) -> None:
        import prometheus_client

        known = {} if registry is None else {"registry": registry}
        self._label = label
        self._waits = prometheus_client.Histogram(
            "redislock_client_wait_seconds", "From acquire to its grant or time-out", ["lock", "outcome"], **known
        )
        self._holds = prometheus_client.Histogram(
            "redislock_client_hold_seconds", "From a grant to its end", ["lock", "outcome"], **known
        )

    def granted(self, name: str, waited: float) -> None:
        self._waits.labels(self._label(name), "granted").observe(waited)

    def timed_out(self, name: str, waited: float) -> None:
        self._waits.labels(self._label(name), "timeout").observe(waited)

    def released(self, name: str, held: float) -> None:
        self._holds.labels(self._label(name), "released").observe(held)

    def lost(self, name: str, held: float, reason: str) -> None:
        self._holds.labels(self._label(name), f"lost:{reason}").observe(held)

    def forgotten(self, name: str, held: float) -> None:
        self._holds.labels(self._label(name), "forgotten").observe(held)


class OpenTelemetryHooks(Hooks):
    """Histograms for OpenTelemetry's metrics."""

    def __init__(self, meter: Any = None, label: Callable[[str], str] = before_the_colon) -> None:
        if meter is None:
            from opentelemetry import metrics

            meter = metrics.get_meter("redislock")
        self._label = label
        self._waits = meter.create_histogram("redislock.client.wait", "s", "From acquire to its grant or time-out")
        self._holds = meter.create_histogram("redislock.client.hold", "s", "From a grant to its end")

    def granted(self, name: str, waited: float) -> None:
        self._waits.record(waited, {"lock": self._label(name), "outcome": "granted"})

    def timed_out(self, name: str, waited: float) -> None:
        self._waits.record(waited, {"lock": self._label(name), "outcome": "timeout"})

    def released(self, name: str, held: float) -> None:
        self._holds.record(held, {"lock": self._label(name), "outcome": "released"})

    def lost(self, name: str, held: float, reason: str) -> None:
        self._holds.record(held, {"lock": self._label(name), "outcome": f"lost:{reason}"})

    def forgotten(self, name: str, held: float) -> None:
        self._holds.record(held, {"lock": self._label(name), "outcome": "forgotten"})
