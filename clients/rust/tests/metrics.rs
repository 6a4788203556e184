//! The hooks for the metrics crate, with a recorder of our own.
#![cfg(feature = "metrics")]

mod common;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::Server;
use metrics::{
    Counter, CounterFn, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use redislock_client::Locks;
use redislock_client::hooks::Metrics;

type Counts = Arc<Mutex<BTreeMap<String, u64>>>;

/// The number of times that something was counted or measured.
struct Named(String, Counts);

impl Named {
    fn add(&self, number: u64) {
        *self.1.lock().unwrap().entry(self.0.clone()).or_default() += number;
    }
}

impl CounterFn for Named {
    fn increment(&self, value: u64) {
        self.add(value);
    }

    fn absolute(&self, _: u64) {}
}

impl HistogramFn for Named {
    fn record(&self, value: f64) {
        assert!(value >= 0.0);
        self.add(1);
    }
}

#[derive(Default)]
struct Seen(Counts);

impl Seen {
    fn named(&self, key: &Key) -> Arc<Named> {
        let labels: Vec<_> = key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        Arc::new(Named(format!("{} {}", key.name(), labels.join(",")).trim_end().to_owned(), self.0.clone()))
    }
}

impl Recorder for Seen {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.named(key))
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.named(key))
    }
}

async fn use_locks(server: &Server) {
    let locks = Locks::builder().server(server.url()).hooks(Arc::new(Metrics)).build().unwrap();
    let guard = locks.lock("k").acquire().await.unwrap();
    locks.lock("k").wait(Duration::ZERO).acquire().await.unwrap_err();
    locks.lock("k").wait(Duration::from_millis(50)).acquire().await.unwrap_err();
    guard.release().await.unwrap();
    let guard = locks.lock("k").acquire().await.unwrap();
    server.ask::<i64>(&["DEL", "k"]);
    guard.lost().await;
    locks.close().await;
}

#[test]
fn each_event_is_counted() {
    let (server, seen) = (Server::start(), Seen::default());
    // One thread, for the recorder is that of the thread.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    metrics::with_local_recorder(&seen, || runtime.block_on(use_locks(&server)));
    let found: Vec<_> =
        seen.0.lock().unwrap().iter().map(|(name, count)| format!("{name} {count}")).collect();
    assert_eq!(
        found,
        [
            "redislock_grants_total 2",
            "redislock_hold_seconds 2",
            "redislock_losses_total reason=push 1",
            "redislock_releases_total 1",
            "redislock_timeouts_total 2",
            "redislock_wait_seconds 4",
            "redislock_waits_total 1",
        ]
    );
}
