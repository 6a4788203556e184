package redislock.opentelemetry;

import io.opentelemetry.api.OpenTelemetry;
import io.opentelemetry.api.common.AttributeKey;
import io.opentelemetry.api.common.Attributes;
import io.opentelemetry.api.metrics.DoubleHistogram;
import io.opentelemetry.api.metrics.LongCounter;
import io.opentelemetry.api.metrics.LongUpDownCounter;
import io.opentelemetry.api.metrics.Meter;
import java.time.Duration;
import java.util.List;
import org.jspecify.annotations.Nullable;
import redislock.LockException;
import redislock.LockListener;
import redislock.LockLostException;

/** Records metrics of waits, holds and renewals: {@code Locks.builder().listener(new Telemetry(openTelemetry, ":", attributes))}. */
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

    /**
     * Returns a listener that records.
     *
     * @param to where to, as {@code GlobalOpenTelemetry.get()}
     * @param separator {@code redislock.lock.group} is the part of a name before it; null for no such attribute, because the
     *     number of names has no bound
     * @param attributes attributes of all that is recorded, as {@code server.address}
     */
    public Telemetry(OpenTelemetry to, @Nullable String separator, Attributes attributes) {
        this.separator = separator;
        this.attributes = attributes;
        var meter = to.getMeter("redislock");
        waits = histogram(meter, "wait", "From acquire to its end", WAITS);
        holds = histogram(meter, "hold", "From a grant to its end", HOLDS);
        waiters = meter.upDownCounterBuilder("redislock.client.waiter.count").setDescription("Requests that have not ended").build();
        holders = meter.upDownCounterBuilder("redislock.client.hold.count").setDescription("Locks that are held").build();
        failures = meter.counterBuilder("redislock.client.renewal.failures").setDescription("Renewals that failed").build();
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
        waits.record(waited.toNanos() / 1e9, about(lock).toBuilder().put(OUTCOME, outcome)
                .put(ERROR, error == null ? null : error.getClass().getName()).build());
    }

    private void endHold(String lock, Duration held, String outcome, @Nullable String reason) {
        holders.add(-1, about(lock));
        holds.record(held.toNanos() / 1e9, about(lock).toBuilder().put(OUTCOME, outcome).put(LOSS, reason).build());
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
