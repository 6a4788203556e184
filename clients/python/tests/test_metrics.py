"""Hooks that report to Prometheus and to OpenTelemetry, by their own libraries."""

from __future__ import annotations

from typing import Any

import prometheus_client
import pytest
import redis
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import redislock
from redislock.metrics import OpenTelemetryHooks, PrometheusHooks


def use(server: Any, hooks: redislock.Hooks) -> None:
    """One lock that is given up, one that is not to be had, one that is lost."""
    with redis.Redis(port=server.port) as client, redislock.Locks(client, hooks=hooks) as locks:
        with (
            locks.lock("invoice:1").acquire(),
            pytest.raises(redislock.LockTimeoutError),
            locks.lock("invoice:1", wait=0),
        ):
            pass
        hold = locks.lock("invoice:2").acquire()
        client.delete("invoice:2")
        assert hold.wait_until_lost(10) == "push"


def test_prometheus(server: Any) -> None:
    registry = prometheus_client.CollectorRegistry()
    use(server, PrometheusHooks(registry))

    def count(which: str, outcome: str) -> float | None:
        labels = {"lock": "invoice", "outcome": outcome}
        return registry.get_sample_value(f"redislock_client_{which}_seconds_count", labels)

    assert count("wait", "granted") == 2 and count("wait", "timeout") == 1
    assert count("hold", "released") == 1 and count("hold", "lost:push") == 1


def test_opentelemetry(server: Any) -> None:
    reader = InMemoryMetricReader()
    use(server, OpenTelemetryHooks(MeterProvider([reader]).get_meter("test")))
    found = {}
    data = reader.get_metrics_data()
    assert data is not None
    for metric in data.resource_metrics[0].scope_metrics[0].metrics:
        for point in metric.data.data_points:
            found[metric.name, dict(point.attributes or {})["outcome"]] = point.count  # type: ignore[union-attr]
    assert found == {
        ("redislock.client.wait", "granted"): 2, ("redislock.client.wait", "timeout"): 1,
        ("redislock.client.hold", "released"): 1, ("redislock.client.hold", "lost:push"): 1,
    }  # fmt: skip
