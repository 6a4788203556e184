//! Hooks that record OpenTelemetry metrics and spans.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime};

use opentelemetry::global::{self, BoxedTracer};
use opentelemetry::metrics::{Counter, Histogram, Meter, UpDownCounter};
use opentelemetry::trace::{Span, SpanContext, Status, TraceContextExt, Tracer};
use opentelemetry::{Context, KeyValue};

use crate::error::{Error, Loss};
use crate::hooks::Hooks;
use crate::link::lock;

/// Bucket bounds in seconds, of waits and of holds.
const WAITS: [f64; 11] = [0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0];
const HOLDS: [f64; 12] = [0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 3600.0];

/// Hooks that record metrics of waits, holds and renewals by the API of [`opentelemetry`], and a span for each wait and
/// each hold.
///
/// Lock names are not attributes, because there may be millions of them. The spans of a wait and of its hold have the
/// same parent.
#[derive(Debug)]
pub struct OpenTelemetry {
    tracer: BoxedTracer,
    separator: Option<String>,
    attributes: Vec<KeyValue>,
    waits: Histogram<f64>,
    holds: Histogram<f64>,
    waiters: UpDownCounter<i64>,
    holders: UpDownCounter<i64>,
    failures: Counter<u64>,
    /// The grants of the holds of each name: their times and spans.
    held: Mutex<HashMap<String, Vec<(Instant, SpanContext)>>>,
}

impl Default for OpenTelemetry {
    /// Records to the global providers.
    fn default() -> Self {
        Self::new(&global::meter("redislock"), global::tracer("redislock"))
    }
}

impl OpenTelemetry {
    /// Records to this meter and this tracer.
    pub fn new(meter: &Meter, tracer: BoxedTracer) -> Self {
        let histogram = |name: &'static str, about: &'static str, buckets: &[f64]| {
            let made = meter.f64_histogram(name).with_unit("s").with_description(about);
            made.with_boundaries(buckets.to_vec()).build()
        };
        let count = |name: &'static str, unit: &'static str, about: &'static str| {
            meter.i64_up_down_counter(name).with_unit(unit).with_description(about).build()
        };
        Self {
            tracer,
            separator: None,
            attributes: Vec::new(),
            waits: histogram("redislock.client.wait.duration", "Time from a request to its end", &WAITS),
            holds: histogram("redislock.client.hold.duration", "Time from a grant to its end", &HOLDS),
            waiters: count("redislock.client.waiter.count", "{waiter}", "Pending requests"),
            holders: count("redislock.client.hold.count", "{hold}", "Holds"),
            failures: meter
                .u64_counter("redislock.client.renewal.failures")
                .with_unit("{renewal}")
                .with_description("Failed renewals")
                .build(),
            held: Mutex::default(),
        }
    }

    /// Adds the attribute `redislock.lock.group`: the part of a lock's name before this separator.
    #[must_use]
    pub fn separator(mut self, separator: impl Into<String>) -> Self {
        self.separator = Some(separator.into());
        self
    }

    /// Adds attributes to everything that is recorded, for example `server.address`.
    #[must_use]
    pub fn attributes(mut self, attributes: impl IntoIterator<Item = KeyValue>) -> Self {
        self.attributes = attributes.into_iter().collect();
        self
    }

    fn about(&self, name: &str) -> Vec<KeyValue> {
        let group = self.separator.as_ref().and_then(|separator| name.split(&**separator).next());
        let group = group.map(|group| KeyValue::new("redislock.lock.group", group.to_owned()));
        self.attributes.iter().cloned().chain(group).collect()
    }

    /// Records a duration and a span, which has failed if its outcome is an error or a loss.
    fn end(
        &self,
        what: &Histogram<f64>,
        span: &'static str,
        lasted: Duration,
        parent: &Context,
        attributes: Vec<KeyValue>,
    ) {
        what.record(lasted.as_secs_f64(), &attributes);
        let (now, failed) = (SystemTime::now(), attributes.iter().any(is_failure));
        let builder = self.tracer.span_builder(span).with_attributes(attributes);
        let mut span = builder.with_start_time(now - lasted).start_with_context(&self.tracer, parent);
        if failed {
            span.set_status(Status::error(""));
        }
        span.end_with_timestamp(now);
    }

    fn end_wait(&self, name: &str, waited: Duration, outcome: &'static str, error: Option<String>) {
        let mut attributes = self.about(name);
        self.waiters.add(-1, &attributes);
        attributes.push(KeyValue::new("redislock.outcome", outcome));
        attributes.extend(error.map(|error| KeyValue::new("error.type", error)));
        self.end(&self.waits, "redislock.client.wait", waited, &Context::current(), attributes);
    }

    fn end_hold(&self, name: &str, held: Duration, outcome: &'static str, loss: Option<Loss>) {
        let parent = self.granted_in(name, held);
        let mut attributes = self.about(name);
        self.holders.add(-1, &attributes);
        attributes.push(KeyValue::new("redislock.outcome", outcome));
        attributes.extend(loss.map(|loss| KeyValue::new("redislock.loss.reason", loss.as_str())));
        let parent = Context::new().with_remote_span_context(parent);
        self.end(&self.holds, "redislock.client.hold", held, &parent, attributes);
    }

    /// Returns the span in which the hold of this name was granted that has lasted for this time, and forgets
    /// it.
    fn granted_in(&self, name: &str, held: Duration) -> SpanContext {
        let mut all = lock(&self.held);
        let Some(known) = all.get_mut(name) else { return SpanContext::NONE };
        let off = |(at, _): &(Instant, SpanContext)| at.elapsed().abs_diff(held);
        let nearest = (0..known.len()).min_by_key(|each| off(&known[*each]));
        let found = nearest.map_or(SpanContext::NONE, |nearest| known.swap_remove(nearest).1);
        if known.is_empty() {
            all.remove(name);
        }
        found
    }
}

fn is_failure(attribute: &KeyValue) -> bool {
    attribute.key.as_str() == "redislock.outcome"
        && ["error", "lost"].contains(&attribute.value.as_str().as_ref())
}

/// Returns the variant of the error.
fn type_of(error: &Error) -> String {
    format!("{error:?}").split(' ').next().unwrap_or_default().to_owned()
}

impl Hooks for OpenTelemetry {
    fn requested(&self, name: &str) {
        self.waiters.add(1, &self.about(name));
    }

    fn granted(&self, name: &str, waited: Duration) {
        let span = Context::map_current(|current| current.span().span_context().clone());
        lock(&self.held).entry(name.to_owned()).or_default().push((Instant::now(), span));
        self.holders.add(1, &self.about(name));
        self.end_wait(name, waited, "granted", None);
    }

    fn timed_out(&self, name: &str, waited: Duration) {
        self.end_wait(name, waited, "timeout", None);
    }

    fn failed(&self, name: &str, waited: Duration, error: Option<&Error>) {
        self.end_wait(name, waited, "error", Some(error.map_or("cancelled".to_owned(), type_of)));
    }

    fn released(&self, name: &str, held: Duration) {
        self.end_hold(name, held, "released", None);
    }

    fn lost(&self, name: &str, held: Duration, reason: Loss) {
        self.end_hold(name, held, "lost", Some(reason));
    }

    fn renewal_failed(&self, name: &str, error: &Error) {
        let about = self.about(name).into_iter().chain([KeyValue::new("error.type", type_of(error))]);
        self.failures.add(1, &about.collect::<Vec<_>>());
    }
}
