// Package opentelemetry records OpenTelemetry metrics of waits, holds and renewals, and a span for each wait and each
// hold.
//
//	locks, err := redislock.Open(address, redislock.WithHooks(opentelemetry.Hooks(opentelemetry.Config{Separator: ":"})))
//
// Lock names are not attributes, because there may be millions of them.
package opentelemetry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
	"redislock.example/go"
)

// A Config sets the providers and the attributes. The zero Config records to the global providers.
type Config struct {
	// Separator, if set, adds the attribute redislock.lock.group: the part of a lock's name before the separator.
	Separator string
	// Attributes are added to everything that is recorded, for example server.address.
	Attributes []attribute.KeyValue
	// MeterProvider and TracerProvider default to the global ones.
	MeterProvider  metric.MeterProvider
	TracerProvider trace.TracerProvider
}

// Bucket bounds in seconds, of waits and of holds.
var (
	ofWaits = []float64{0.001, 0.005, 0.025, 0.1, 0.5, 1, 5, 10, 30, 60, 300}
	ofHolds = []float64{0.001, 0.01, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800, 3600}
)

var kinds = map[error]string{
	redislock.ErrLockLost: "ErrLockLost", redislock.ErrDeadlock: "ErrDeadlock", redislock.ErrAlreadyHeld: "ErrAlreadyHeld",
	redislock.ErrFenced: "ErrFenced", redislock.ErrLockKindMismatch: "ErrLockKindMismatch",
	redislock.ErrQueueFull: "ErrQueueFull", redislock.ErrQuarantine: "ErrQuarantine",
	redislock.ErrNotConfirmed: "ErrNotConfirmed", redislock.ErrModuleMissing: "ErrModuleMissing",
	redislock.ErrConnectionFailed: "ErrConnectionFailed", redislock.ErrServerRefused: "ErrServerRefused",
	redislock.ErrInvalid: "ErrInvalid", redislock.ErrClosed: "ErrClosed",
}

// typeOf returns the name of the error that it matches.
func typeOf(err error) string {
	var e *redislock.Error
	switch {
	case errors.As(err, &e) && kinds[e.Kind] != "":
		return kinds[e.Kind]
	case errors.Is(err, redislock.ErrLockLost):
		return kinds[redislock.ErrLockLost]
	case errors.Is(err, context.Canceled):
		return "context.Canceled"
	}
	return fmt.Sprintf("%T", err)
}

type recorder struct {
	Config
	tracer           trace.Tracer
	waits, holds     metric.Float64Histogram
	waiters, holders metric.Int64UpDownCounter
	failures         metric.Int64Counter
}

// Hooks returns hooks for redislock.WithHooks. Each span is a child of the span in the context of the acquire.
func Hooks(c Config) redislock.Hooks {
	if c.MeterProvider == nil {
		c.MeterProvider = otel.GetMeterProvider()
	}
	if c.TracerProvider == nil {
		c.TracerProvider = otel.GetTracerProvider()
	}
	meter := c.MeterProvider.Meter("redislock")
	histogram := func(name, description string, bounds []float64) metric.Float64Histogram {
		return made(meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(description),
			metric.WithExplicitBucketBoundaries(bounds...)))
	}
	count := func(name, unit, description string) metric.Int64UpDownCounter {
		return made(meter.Int64UpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(description)))
	}
	r := &recorder{
		Config:  c,
		tracer:  c.TracerProvider.Tracer("redislock"),
		waits:   histogram("redislock.client.wait.duration", "Time from a request to its end", ofWaits),
		holds:   histogram("redislock.client.hold.duration", "Time from a grant to its end", ofHolds),
		waiters: count("redislock.client.waiter.count", "{waiter}", "Pending requests"),
		holders: count("redislock.client.hold.count", "{hold}", "Holds"),
		failures: made(meter.Int64Counter("redislock.client.renewal.failures",
			metric.WithUnit("{renewal}"), metric.WithDescription("Failed renewals"))),
	}
	return redislock.Hooks{
		Requested: r.requested,
		Granted: func(ctx context.Context, lock string, waited time.Duration) {
			r.holders.Add(ctx, 1, metric.WithAttributes(r.about(lock)...))
			r.endWait(ctx, lock, waited, "granted")
		},
		TimedOut: func(ctx context.Context, lock string, waited time.Duration) { r.endWait(ctx, lock, waited, "timeout") },
		Failed: func(ctx context.Context, lock string, waited time.Duration, err error) {
			r.endWait(ctx, lock, waited, "error", attribute.String("error.type", typeOf(err)))
		},
		Released: func(ctx context.Context, lock string, held time.Duration) { r.endHold(ctx, lock, held, "released") },
		Lost:     r.lost,
		RenewalFailed: func(ctx context.Context, lock string, err error) {
			r.failures.Add(ctx, 1, metric.WithAttributes(r.about(lock, attribute.String("error.type", typeOf(err)))...))
		},
	}
}

// made returns the instrument. If OpenTelemetry cannot make one, it returns one that records nothing.
func made[T any](instrument T, err error) T {
	if err != nil {
		otel.Handle(err)
	}
	return instrument
}

func (r *recorder) about(lock string, more ...attribute.KeyValue) []attribute.KeyValue {
	all := append(slices.Clone(r.Attributes), more...)
	if r.Separator == "" {
		return all
	}
	group, _, _ := strings.Cut(lock, r.Separator)
	return append(all, attribute.String("redislock.lock.group", group))
}

// requested keeps only the span of the context, since a hold may outlast all else that it refers to.
func (r *recorder) requested(ctx context.Context, lock string) context.Context {
	r.waiters.Add(ctx, 1, metric.WithAttributes(r.about(lock)...))
	return trace.ContextWithSpanContext(context.Background(), trace.SpanContextFromContext(ctx))
}

func (r *recorder) endWait(ctx context.Context, lock string, waited time.Duration, outcome string, more ...attribute.KeyValue) {
	r.waiters.Add(ctx, -1, metric.WithAttributes(r.about(lock)...))
	r.end(ctx, r.waits, "redislock.client.wait", waited, outcome, r.about(lock, more...))
}

func (r *recorder) endHold(ctx context.Context, lock string, held time.Duration, outcome string, more ...attribute.KeyValue) {
	r.holders.Add(ctx, -1, metric.WithAttributes(r.about(lock)...))
	r.end(ctx, r.holds, "redislock.client.hold", held, outcome, r.about(lock, more...))
}

func (r *recorder) lost(ctx context.Context, lock string, held time.Duration, lost *redislock.LostError) {
	if lost.Reason == redislock.ReasonForgotten {
		r.endHold(ctx, lock, held, "forgotten")
		return
	}
	r.endHold(ctx, lock, held, "lost", attribute.String("redislock.loss.reason", string(lost.Reason)))
}

// end records a duration and a span, which has failed if its outcome is an error or a loss.
func (r *recorder) end(
	ctx context.Context, of metric.Float64Histogram, name string, lasted time.Duration, outcome string, about []attribute.KeyValue,
) {
	about = append(about, attribute.String("redislock.outcome", outcome))
	of.Record(ctx, lasted.Seconds(), metric.WithAttributes(about...))
	end := time.Now()
	_, span := r.tracer.Start(ctx, name, trace.WithTimestamp(end.Add(-lasted)), trace.WithAttributes(about...))
	if outcome == "error" || outcome == "lost" {
		span.SetStatus(codes.Error, "")
	}
	span.End(trace.WithTimestamp(end))
}
