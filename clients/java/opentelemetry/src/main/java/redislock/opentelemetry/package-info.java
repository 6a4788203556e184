/** Metrics of locks by OpenTelemetry. */
@NullMarked
package redislock.opentelemetry;

import org.jspecify.annotations.NullMarked;
