package redislock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static redislock.Server.SLACK;
import static redislock.Server.eventually;

import io.opentelemetry.api.common.AttributeKey;
import io.opentelemetry.api.common.Attributes;
import io.opentelemetry.api.trace.Span;
import io.opentelemetry.sdk.OpenTelemetrySdk;
import io.opentelemetry.sdk.metrics.SdkMeterProvider;
import io.opentelemetry.sdk.testing.exporter.InMemoryMetricReader;
import io.opentelemetry.sdk.testing.exporter.InMemorySpanExporter;
import io.opentelemetry.sdk.trace.SdkTracerProvider;
import io.opentelemetry.sdk.trace.export.SimpleSpanProcessor;
import java.time.Duration;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CancellationException;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import redislock.opentelemetry.Telemetry;

class TelemetryTest extends OneServer {
    private static final AttributeKey<String> PLACE = AttributeKey.stringKey("server.address");

    private static final Map<String, String> UNITS = Map.of("wait.duration", "s", "hold.duration", "s", "waiter.count",
            "{waiter}", "hold.count", "{hold}", "renewal.failures", "{renewal}");

    /** Returns what was recorded: a sum, or how often a duration was. */
    private static Map<String, Long> recorded(InMemoryMetricReader reader) {
        var all = new TreeMap<String, Long>();
        for (var metric : reader.collectAllMetrics()) {
            var name = metric.getName().replace("redislock.client.", "");
            assertEquals(UNITS.get(name), metric.getUnit(), name);
            metric.getLongSumData().getPoints().forEach(point -> all.put(name + shown(point.getAttributes()), point.getValue()));
            metric.getHistogramData().getPoints().forEach(point -> {
                assertTrue(point.getSum() >= 0 && point.getSum() < SLACK.toSeconds() * 10, "" + point.getSum());
                all.put(name + shown(point.getAttributes()), point.getCount());
            });
        }
        return all;
    }

    private static String shown(Attributes attributes) {
        assertEquals("here", attributes.get(PLACE));
        var words = new StringBuilder();
        attributes.toBuilder().remove(PLACE).build().forEach((key, value) ->
                words.append(" ").append(key.getKey().replace("redislock.", "")).append("=").append(value));
        return words.toString();
    }

    @Test
    void metricsHaveTheNamesOfTheConvention() throws Exception {
        var reader = InMemoryMetricReader.create();
        var sdk = OpenTelemetrySdk.builder().setMeterProvider(SdkMeterProvider.builder().registerMetricReader(reader).build()).build();
        try (var own = Locks.builder().address(server.address()).listener(new Telemetry(sdk, ":", Attributes.of(PLACE, "here"))).open()) {
            var hold = own.lock("invoice:1").acquire();
            var waiting = own.lock("invoice:1").acquireAsync();
            eventually("it waits", () -> server.waiters("invoice:1") == 1);
            assertEquals(Map.of("hold.count lock.group=invoice", 1L, "waiter.count lock.group=invoice", 1L,
                    "wait.duration lock.group=invoice outcome=granted", 1L), recorded(reader));
            waiting.cancel(true);
            assertThrows(CancellationException.class, waiting::join);
            assertTrue(own.lock("invoice:1").tryAcquire().isEmpty());
            assertThrows(LockTimeoutException.class, () -> own.lock("invoice:1").waitFor(Duration.ofMillis(20)).acquire());
            assertThrows(LockKindMismatchException.class, () -> own.semaphore("invoice:1", 2).tryAcquire());
            hold.close();
            var lost = own.lock("invoice:2").acquire();
            server.command("DEL", "invoice:2");
            assertThrows(LockLostException.class, lost::close);
        }
        var all = recorded(reader);
        var reason = all.keySet().stream().filter(key -> key.contains("outcome=lost")).findFirst().orElse("none");
        assertTrue(reason.matches("hold.duration lock.group=invoice loss.reason=(push|release) outcome=lost"), all.toString());
        assertEquals(Map.of("hold.count lock.group=invoice", 0L, "waiter.count lock.group=invoice", 0L,
                "wait.duration lock.group=invoice outcome=granted", 2L, "wait.duration lock.group=invoice outcome=timeout", 2L,
                "wait.duration error.type=java.util.concurrent.CancellationException lock.group=invoice outcome=error", 1L,
                "wait.duration error.type=redislock.LockKindMismatchException lock.group=invoice outcome=error", 1L,
                "hold.duration lock.group=invoice outcome=released", 1L, reason, 1L), all);
        sdk.close();
    }

    private static Map<String, Integer> spans(InMemorySpanExporter exporter, Span parent) {
        var all = new TreeMap<String, Integer>();
        for (var span : exporter.getFinishedSpanItems()) {
            assertEquals(parent.getSpanContext().getSpanId(), span.getParentSpanId(), span.getName());
            assertTrue(span.getEndEpochNanos() >= span.getStartEpochNanos(), span.getName());
            var status = span.getStatus().getStatusCode().name().toLowerCase();
            all.merge(span.getName().replace("redislock.client.", "") + shown(span.getAttributes()) + " " + status, 1, Integer::sum);
        }
        return all;
    }

    @Test
    void spansAreChildrenOfTheSpanInWhichTheLockWasAcquired() throws Exception {
        var exporter = InMemorySpanExporter.create();
        var tracers = SdkTracerProvider.builder().addSpanProcessor(SimpleSpanProcessor.create(exporter)).build();
        var sdk = OpenTelemetrySdk.builder().setTracerProvider(tracers).build();
        var parent = sdk.getTracer("test").spanBuilder("request").startSpan();
        try (var own = Locks.builder().address(server.address()).listener(new Telemetry(sdk, ":", Attributes.of(PLACE, "here"))).open()) {
            Hold lost;
            try (var scope = parent.makeCurrent(); var hold = own.lock("trace:1").acquire()) {
                assertTrue(own.lock("trace:1").tryAcquire().isEmpty(), () -> "it is held in " + scope);
                assertThrows(LockKindMismatchException.class, () -> own.semaphore("trace:1", 2).tryAcquire());
                lost = own.lock("trace:2").acquireAsync().get(SLACK.toSeconds(), TimeUnit.SECONDS);
                hold.check();
            }
            server.command("DEL", "trace:2"); // outside of the span
            eventually("all have ended", () -> exporter.getFinishedSpanItems().size() == 6);
            assertTrue(lost.reason().isPresent());
        }
        assertEquals(new TreeMap<>(Map.of("hold lock.group=trace outcome=released unset", 1,
                "hold lock.group=trace loss.reason=push outcome=lost error", 1, "wait lock.group=trace outcome=granted unset", 2,
                "wait lock.group=trace outcome=timeout unset", 1,
                "wait error.type=redislock.LockKindMismatchException lock.group=trace outcome=error error", 1)), spans(exporter, parent));
        sdk.close();
    }

    @Test
    void outageCountsRenewalsAndEndsEachHoldOnce() throws Exception {
        var reader = InMemoryMetricReader.create();
        var sdk = OpenTelemetrySdk.builder().setMeterProvider(SdkMeterProvider.builder().registerMetricReader(reader).build()).build();
        var place = Attributes.of(PLACE, "here");
        try (var dying = new Server();
                var own = Locks.builder().address(dying.address()).listener(new Telemetry(sdk, null, place)).open()) {
            var lost = own.lock("lost").lease(Duration.ofSeconds(3)).acquire();
            var released = own.lock("released").acquire();
            dying.kill();
            released.releaseAsync();
            eventually("it is lost", () -> lost.reason().isPresent());
            eventually("both have ended", () -> recorded(reader).get("hold.count") == 0);
            var all = recorded(reader);
            assertTrue(all.get("renewal.failures error.type=redislock.ConnectionFailedException") > 0, all.toString());
            assertEquals(1, all.get("hold.duration outcome=released"), all.toString());
            assertEquals(1, all.get("hold.duration loss.reason=deadline outcome=lost"), all.toString());
        }
        sdk.close();
    }

    @Test
    void nullIsRefusedByItsName() throws Exception {
        assertEquals(2, new Nulls(Map.of(Attributes.class, Attributes.empty())).tries(Telemetry.class));
    }
}
