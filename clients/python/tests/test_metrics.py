"""Hooks that report to Prometheus and to OpenTelemetry, by their own libraries."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import prometheus_client
import pytest
import redis
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import redislock
from redislock import testing
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


class Recorded:
    """OpenTelemetry's own SDK, which keeps in memory what it is given."""

    def __init__(self, **options: Any) -> None:
        self._reader, self._spans = InMemoryMetricReader(), InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._spans))
        self.tracer = provider.get_tracer("test")
        meter = MeterProvider([self._reader]).get_meter("test")
        self.hooks = OpenTelemetryHooks(meter=meter, tracer=self.tracer, **options)

    def metrics(self) -> dict[str, list[tuple[dict[str, Any], Any]]]:
        """The points of each metric: attributes, and the count or the sum."""
        data, found = self._reader.get_metrics_data(), dict[str, list[tuple[dict[str, Any], Any]]]()
        assert data is not None
        for metric in data.resource_metrics[0].scope_metrics[0].metrics:
            for point in metric.data.data_points:
                value = point.count if hasattr(point, "count") else getattr(point, "value", None)
                found.setdefault(metric.name, []).append((dict(point.attributes or {}), value))
        return found

    def spans(self) -> list[Any]:
        return list(self._spans.get_finished_spans())


def test_opentelemetry_by_its_conventions(server: Any) -> None:
    recorded = Recorded(separator=":", attributes={"server.address": "localhost", "server.port": server.port})
    use(server, recorded.hooks)
    found, about = recorded.metrics(), recorded.hooks._about("invoice:1")
    assert about == {"server.address": "localhost", "server.port": server.port, "redislock.lock.group": "invoice"}
    assert found == {
        "redislock.client.wait.duration": [
            (about | {"redislock.outcome": "granted"}, 2),
            (about | {"redislock.outcome": "timeout"}, 1),
        ],
        "redislock.client.hold.duration": [
            (about | {"redislock.outcome": "released"}, 1),
            (about | {"redislock.outcome": "lost", "redislock.loss.reason": "push"}, 1),
        ],
        "redislock.client.hold.count": [(about, 0)],
        "redislock.client.waiter.count": [(about, 0)],
    }


def test_opentelemetry_has_a_span_for_each_wait_and_each_hold() -> None:
    recorded, server = Recorded(), testing.Server()
    with redislock.Locks(server, hooks=recorded.hooks) as locks:
        with recorded.tracer.start_as_current_span("request") as request:
            hold = locks.lock("invoice:1").acquire()
            assert recorded.metrics()["redislock.client.hold.count"] == [({}, 1)]
        server.lose("invoice:1")  # is noticed in another thread, after the request
        with pytest.raises(redislock.LockLostError):
            hold.release()
        with locks.semaphore("s", 2), pytest.raises(redislock.LockKindMismatchError):
            locks.lock("s").acquire()
    spans = [(span.name, dict(span.attributes), span.status.status_code.name) for span in recorded.spans()]
    wait, held = "redislock.client.wait", "redislock.client.hold"
    lost = {"redislock.outcome": "lost", "redislock.loss.reason": "push"}
    refused = {"redislock.outcome": "error", "error.type": "LockKindMismatchError"}
    assert spans == [
        (wait, {"redislock.outcome": "granted"}, "UNSET"),
        ("request", {}, "UNSET"),
        (held, lost, "ERROR"),
        (wait, {"redislock.outcome": "granted"}, "UNSET"),
        (wait, refused | spans[4][1], "ERROR"),
        (held, {"redislock.outcome": "released"}, "UNSET"),
    ]
    assert spans[4][1].items() >= refused.items()
    in_request = [
        span.name
        for span in recorded.spans()
        if span.parent and span.parent.span_id == request.get_span_context().span_id
    ]
    assert in_request == [wait, held], "also the one whose loss another thread has noticed"
    each = recorded.spans()[2]
    assert each.start_time < each.end_time


def test_metrics_count_a_detached_hold_where_it_was_adopted() -> None:
    first, second, server = Recorded(), Recorded(), testing.Server()
    registry = prometheus_client.CollectorRegistry()
    with redislock.Locks(server, hooks=first.hooks) as one, redislock.Locks(server, hooks=second.hooks) as two:
        adopted = two.adopt(one.lock("k").acquire().detach())
        assert first.metrics()["redislock.client.hold.count"] == [({}, 0)]
        assert first.metrics()["redislock.client.hold.duration"] == [({"redislock.outcome": "detached"}, 1)]
        assert second.metrics() == {"redislock.client.hold.count": [({}, 1)]}
        adopted.release()
        assert second.metrics()["redislock.client.hold.count"] == [({}, 0)]
        assert second.metrics()["redislock.client.hold.duration"] == [({"redislock.outcome": "released"}, 1)]
    with redislock.Locks(server, hooks=PrometheusHooks(registry)) as locks:
        locks.lock("k").acquire().detach()
    detached = {"lock": "k", "outcome": "detached"}
    assert registry.get_sample_value("redislock_client_hold_seconds_count", detached) == 1


def test_opentelemetry_counts_renewals_that_fail(start_server: Any) -> None:
    recorded, server = Recorded(), start_server()
    with redislock.Locks(redis.Redis(port=server.port), hooks=recorded.hooks) as locks:
        hold = locks.lock("k", lease=2).acquire()
        server.kill()
        assert hold.wait_until_lost(60) == "deadline"
    ((about, count),) = recorded.metrics()["redislock.client.renewal.failures"]
    assert count >= 1 and about == {
        "error.type": "ConnectionFailedError", "server.address": "localhost", "server.port": server.port
    }  # fmt: skip


def test_nothing_of_opentelemetry_is_imported_before_it_is_asked_for() -> None:
    code = """if True:
        import sys, redis, valkey
        before = set(sys.modules)  # redis-py imports it where it is installed
        import redislock, redislock.metrics
        print([name for name in set(sys.modules) - before if name.startswith("opentelemetry")])
    """
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
