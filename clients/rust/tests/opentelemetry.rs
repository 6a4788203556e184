//! The hooks for OpenTelemetry, recorded by its own SDK.
#![cfg(feature = "opentelemetry")]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use common::{PATIENCE, Server, eventually};
use opentelemetry::global::BoxedTracer;
use opentelemetry::metrics::MeterProvider as _;
use opentelemetry::trace::{FutureExt as _, TraceContextExt as _, Tracer as _, TracerProvider as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::metrics::data::{AggregatedMetrics, MetricData};
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, SdkMeterProvider};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracer, SdkTracerProvider};
use redislock_client::hooks::OpenTelemetry;
use redislock_client::{Error, Locks, Loss};
use tokio::time::timeout;

const SECOND: Duration = Duration::from_secs(1);

/// OpenTelemetry's own SDK, which keeps in memory what it is given.
struct Recorded {
    meters: SdkMeterProvider,
    metrics: InMemoryMetricExporter,
    spans: InMemorySpanExporter,
    tracer: SdkTracer,
}

fn text<'a>(attributes: impl Iterator<Item = &'a KeyValue>) -> String {
    let mut all: Vec<_> = attributes.map(|each| format!("{}={}", each.key, each.value)).collect();
    all.sort();
    all.join(" ")
}

impl Recorded {
    fn new() -> Self {
        let (metrics, spans) = (InMemoryMetricExporter::default(), InMemorySpanExporter::default());
        let meters = SdkMeterProvider::builder().with_periodic_exporter(metrics.clone()).build();
        let tracers = SdkTracerProvider::builder().with_simple_exporter(spans.clone()).build();
        Self { meters, metrics, spans, tracer: tracers.tracer("test") }
    }

    fn hooks(&self) -> OpenTelemetry {
        OpenTelemetry::new(&self.meters.meter("test"), BoxedTracer::new(Box::new(self.tracer.clone())))
    }

    /// The counts and sums by metric and attributes.
    fn points(&self) -> BTreeMap<String, i64> {
        self.metrics.reset();
        self.meters.force_flush().unwrap();
        let mut found = BTreeMap::new();
        let all = self.metrics.get_finished_metrics().unwrap();
        for metric in all.iter().flat_map(|all| all.scope_metrics()).flat_map(|scope| scope.metrics()) {
            let points: Vec<(String, i64)> = match metric.data() {
                AggregatedMetrics::F64(MetricData::Histogram(histogram)) => histogram
                    .data_points()
                    .map(|point| (text(point.attributes()), point.count().try_into().unwrap()))
                    .collect(),
                AggregatedMetrics::I64(MetricData::Sum(sum)) => {
                    sum.data_points().map(|point| (text(point.attributes()), point.value())).collect()
                }
                AggregatedMetrics::U64(MetricData::Sum(sum)) => sum
                    .data_points()
                    .map(|point| (text(point.attributes()), point.value().try_into().unwrap()))
                    .collect(),
                other => panic!("{other:?}"),
            };
            let name = metric.name().replace("redislock.client.", "");
            found.extend(points.into_iter().map(|(about, value)| (format!("{name} {about}"), value)));
        }
        found
    }

    /// Names and attributes of the spans that have ended.
    fn spans(&self) -> Vec<String> {
        let spans = self.spans.get_finished_spans().unwrap();
        let one = |span: &opentelemetry_sdk::trace::SpanData| {
            assert!(span.start_time <= span.end_time);
            format!("{} {:?} {}", span.name, span.status, text(span.attributes.iter()))
        };
        spans.iter().map(one).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_have_the_names_of_the_convention() {
    let (server, recorded) = (Server::start(), Recorded::new());
    let hooks = recorded.hooks().separator(":").attributes([KeyValue::new("server.address", "localhost")]);
    let locks = Locks::builder().server(server.url()).hooks(Arc::new(hooks)).build().unwrap();
    let guard = locks.lock("invoice:1").acquire().await.unwrap();
    assert!(locks.lock("invoice:1").try_acquire().await.unwrap().is_none());
    let about = "redislock.lock.group=invoice server.address=localhost";
    assert_eq!(recorded.points()[&format!("hold.count {about}")], 1);
    guard.release().await.unwrap();
    let guard = locks.lock("invoice:2").acquire().await.unwrap();
    server.ask::<i64>(&["DEL", "invoice:2"]);
    assert_eq!(timeout(PATIENCE, guard.lost()).await.unwrap(), Some(Loss::Push));
    let end = |metric, outcome, rest: &str| {
        format!(
            "{metric}.duration {}redislock.lock.group=invoice redislock.outcome={outcome} server.address=localhost",
            if rest.is_empty() { String::new() } else { format!("{rest} ") }
        )
    };
    let lost = format!(
        "hold.duration redislock.lock.group=invoice redislock.loss.reason=push redislock.outcome=lost {}",
        "server.address=localhost"
    );
    let expected = [
        (format!("hold.count {about}"), 0),
        (lost, 1),
        (end("hold", "released", ""), 1),
        (end("wait", "granted", ""), 2),
        (end("wait", "timeout", ""), 1),
        (format!("waiter.count {about}"), 0),
    ];
    let expected = BTreeMap::from(expected);
    eventually(&format!("{expected:?}"), || recorded.points() == expected).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_wait_and_each_hold_has_a_span_in_that_of_the_acquire() {
    let (server, recorded) = (Server::start(), Recorded::new());
    let hooks = Arc::new(recorded.hooks());
    let locks = Locks::builder().server(server.url()).hooks(hooks).build().unwrap();
    let request = Context::current_with_span(recorded.tracer.start("request"));
    let its = request.span().span_context().span_id();
    let guard = locks.lock("invoice:1").acquire().with_context(request.clone()).await.unwrap();
    request.span().end();
    server.ask::<i64>(&["DEL", "invoice:1"]);
    timeout(PATIENCE, guard.lost()).await.unwrap();
    eventually("all have ended", || recorded.spans().len() == 3).await;
    assert_eq!(
        recorded.spans(),
        [
            "redislock.client.wait Unset redislock.outcome=granted",
            "request Unset ",
            "redislock.client.hold Error { description: \"\" } redislock.loss.reason=push redislock.outcome=lost",
        ]
    );
    let parents = recorded.spans.get_finished_spans().unwrap();
    assert_eq!(parents[0].parent_span_id, its);
    assert_eq!(parents[2].parent_span_id, its, "also the one whose loss another task has noticed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_fails_or_is_dropped_waits_no_more() {
    let (server, recorded) = (Server::start(), Recorded::new());
    let locks = Locks::builder().server(server.url()).hooks(Arc::new(recorded.hooks())).build().unwrap();
    let guard = locks.semaphore("s", 2).acquire().await.unwrap();
    let refused = locks.lock("s").acquire().await.unwrap_err();
    assert!(matches!(refused, Error::LockKindMismatch { .. }), "{refused}");
    let busy = locks.lock("k").acquire().await.unwrap();
    let waiting = locks.lock("k");
    let waiting = tokio::spawn(async move { waiting.acquire().await });
    eventually("it waits", || server.waiters("k") == 1).await;
    assert_eq!(recorded.points()["waiter.count "], 1);
    waiting.abort();
    waiting.await.unwrap_err();
    let points = recorded.points();
    assert_eq!((points["waiter.count "], points["hold.count "]), (0, 2));
    for error in ["LockKindMismatch", "cancelled"] {
        assert_eq!(points[&format!("wait.duration error.type={error} redislock.outcome=error")], 1);
    }
    drop((guard, busy));
    assert_eq!(recorded.points()["hold.count "], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn renewals_that_fail_are_counted_and_a_hold_ends_though_no_server_answers_its_release() {
    let (mut server, recorded) = (Server::start(), Recorded::new());
    let locks = Locks::builder().server(server.url()).hooks(Arc::new(recorded.hooks())).build().unwrap();
    let guard = locks.lock("k").lease(2 * SECOND).acquire().await.unwrap();
    let other = locks.lock("o").acquire().await.unwrap();
    server.kill();
    assert_eq!(timeout(PATIENCE, guard.lost()).await.unwrap(), Some(Loss::Deadline));
    assert!(recorded.points()["renewal.failures error.type=ConnectionFailed"] > 0);
    eventually("one is left", || recorded.points()["hold.count "] == 1).await;
    let failed = other.release().await.unwrap_err();
    assert!(matches!(failed, Error::ConnectionFailed { .. }), "{failed}");
    assert_eq!(recorded.points()["hold.count "], 0);
}
