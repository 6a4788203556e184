package redislock.opentelemetry;

import io.opentelemetry.api.OpenTelemetry;
import io.opentelemetry.api.common.AttributeKey;
import io.opentelemetry.api.common.Attributes;
import io.opentelemetry.api.metrics.DoubleHistogram;
import io.opentelemetry.api.metrics.LongCounter;
import io.opentelemetry.api.metrics.LongUpDownCounter;
import io.opentelemetry.api.metrics.Meter;
import io.opentelemetry.api.trace.Span;
import io.opentelemetry.api.trace.SpanContext;
import io.opentelemetry.api.trace.StatusCode;
import io.opentelemetry.api.trace.Tracer;
import io.opentelemetry.context.Context;
import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.Objects;
import org.jspecify.annotations.Nullable;
import redislock.LockException;
import redislock.LockListener;
import redislock.LockLostException;

/**
 * Records metrics of waits, holds and renewals, and a span for each wait and each hold:
 * {@code Locks.builder().listener(new Telemetry(openTelemetry, ":", attributes))}. Each span is a child of the current
 * span of the thread that acquires.
 */
public final class Telemetry implements LockListener {
    private static final AttributeKey<String> GROUP = AttributeKey.stringKey("redislock.lock.group");
    private static final AttributeKey<String> OUTCOME = AttributeKey.stringKey("redislock.outcome");
    private static final AttributeKey<String> LOSS = AttributeKey.stringKey("redislock.loss.reason");
    private static final AttributeKey<String> ERROR = AttributeKey.stringKey("error.type");
    private static final List<Double> WAITS = List.of(0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0);
    private static final List<Double> HOLDS = List.of(0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 3600.0);

    private final @Nullable String separator;
    private final Attributes attributes;
    private final DoubleHistogram waits;
    private final DoubleHistogram holds;
    private final LongUpDownCounter waiters;
    private final LongUpDownCounter holders;
    private final LongCounter failures;
    private final Tracer tracer;
    /** The span in which an acquire began. */
    private final Context parent;

    /**
     * Creates a listener that records.
     *
     * @param to where to record, for example {@code GlobalOpenTelemetry.get()}
     * @param separator adds the attribute {@code redislock.lock.group}: the part of a lock's name before the separator; null adds no such attribute
     * @param attributes are added to everything that is recorded, for example {@code server.address}
     */
    public Telemetry(OpenTelemetry to, @Nullable String separator, Attributes attributes) {
        this.separator = separator;
        this.attributes = Objects.requireNonNull(attributes, "attributes must not be null");
        var meter = Objects.requireNonNull(to, "to must not be null").getMeter("redislock");
        waits = histogram(meter, "wait", "Time from a request to its end", WAITS);
        holds = histogram(meter, "hold", "Time from a grant to its end", HOLDS);
        waiters = meter.upDownCounterBuilder("redislock.client.waiter.count").setUnit("{waiter}")
                .setDescription("Pending requests").build();
        holders = meter.upDownCounterBuilder("redislock.client.hold.count").setUnit("{hold}").setDescription("Holds").build();
        failures = meter.counterBuilder("redislock.client.renewal.failures").setUnit("{renewal}")
                .setDescription("Failed renewals").build();
        tracer = to.getTracer("redislock");
        parent = Context.root();
    }

    private Telemetry(Telemetry same, SpanContext span) {
        separator = same.separator;
        attributes = same.attributes;
        waits = same.waits;
        holds = same.holds;
        waiters = same.waiters;
        holders = same.holders;
        failures = same.failures;
        tracer = same.tracer;
        parent = Context.root().with(Span.wrap(span)); // and nothing else of the thread: a hold may outlast that
    }

    @Override
    public LockListener forAcquire(String lock) {
        return new Telemetry(this, Span.current().getSpanContext());
    }

    /** Records a duration and a span. */
    private void end(DoubleHistogram of, String name, Duration lasted, boolean failed, Attributes about) {
        of.record(lasted.toNanos() / 1e9, about);
        var now = Instant.now();
        var span = tracer.spanBuilder(name).setParent(parent).setStartTimestamp(now.minus(lasted)).setAllAttributes(about).startSpan();
        if (failed) {
            span.setStatus(StatusCode.ERROR);
        }
        span.end(now);
    }

    private static DoubleHistogram histogram(Meter meter, String what, String description, List<Double> buckets) {
        return meter.histogramBuilder("redislock.client." + what + ".duration").setUnit("s").setDescription(description)
                .setExplicitBucketBoundariesAdvice(buckets).build();
    }

    private Attributes about(String lock) {
        if (separator == null) {
            return attributes;
        }
        int end = lock.indexOf(separator);
        return attributes.toBuilder().put(GROUP, end < 0 ? lock : lock.substring(0, end)).build();
    }

    private void endWait(String lock, Duration waited, String outcome, @Nullable Exception error) {
        waiters.add(-1, about(lock));
        end(waits, "redislock.client.wait", waited, error != null, about(lock).toBuilder().put(OUTCOME, outcome)
                .put(ERROR, error == null ? null : error.getClass().getName()).build());
    }

    private void endHold(String lock, Duration held, String outcome, @Nullable String reason) {
        holders.add(-1, about(lock));
        end(holds, "redislock.client.hold", held, reason != null, about(lock).toBuilder().put(OUTCOME, outcome).put(LOSS, reason).build());
    }

    @Override
    public void requested(String lock) {
        waiters.add(1, about(lock));
    }

    @Override
    public void granted(String lock, Duration waited) {
        endWait(lock, waited, "granted", null);
        holders.add(1, about(lock));
    }

    @Override
    public void timedOut(String lock, Duration waited) {
        endWait(lock, waited, "timeout", null);
    }

    @Override
    public void failed(String lock, Duration waited, RuntimeException failure) {
        endWait(lock, waited, "error", failure);
    }

    @Override
    public void released(String lock, Duration held) {
        endHold(lock, held, "released", null);
    }

    @Override
    public void lost(String lock, Duration held, LockLostException lost) {
        boolean isForgotten = lost.reason() == LockLostException.Reason.FORGOTTEN;
        endHold(lock, held, isForgotten ? "forgotten" : "lost", isForgotten ? null : lost.reason().word());
    }

    @Override
    public void renewalFailed(String lock, LockException failure) {
        failures.add(1, about(lock).toBuilder().put(ERROR, failure.getClass().getName()).build());
    }
}
