package opentelemetry_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"redislock.example/go"
	"redislock.example/go/internal/testserver"
	"redislock.example/go/opentelemetry"
)

const slack = 60 * time.Second

var background = context.Background()

// A recording is what a test records to.
type recording struct {
	t      *testing.T
	server *testserver.Server
	locks  *redislock.Locks
	reader *sdkmetric.ManualReader
	spans  *tracetest.InMemoryExporter
	tracer *sdktrace.TracerProvider
}

func record(t *testing.T, separator string) *recording {
	t.Helper()
	server, err := testserver.Start("--save", "")
	if err != nil {
		t.Fatal(err)
	}
	r := &recording{t: t, server: server, reader: sdkmetric.NewManualReader(), spans: tracetest.NewInMemoryExporter()}
	r.tracer = sdktrace.NewTracerProvider(sdktrace.WithSyncer(r.spans))
	hooks := opentelemetry.Hooks(opentelemetry.Config{
		Separator: separator, Attributes: []attribute.KeyValue{attribute.String("server.address", "here")},
		MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(r.reader)), TracerProvider: r.tracer,
	})
	r.locks, err = redislock.Open("redis://"+server.Address, redislock.WithHooks(hooks), redislock.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sync.OnceFunc(func() {
		r.locks.Close(background)
		server.Stop()
	}))
	return r
}

// shown are the attributes, but for the one that all have.
func (r *recording) shown(attributes attribute.Set) string {
	var words strings.Builder
	place := false
	for _, each := range attributes.ToSlice() {
		if each.Key == "server.address" {
			place = each.Value.AsString() == "here"
			continue
		}
		fmt.Fprintf(&words, " %s=%s", strings.TrimPrefix(string(each.Key), "redislock."), each.Value.AsString())
	}
	if !place {
		r.t.Errorf("no server.address: %v", attributes.ToSlice())
	}
	return words.String()
}

// metrics are what was recorded: a sum, or how often a duration was.
func (r *recording) metrics() map[string]int64 {
	r.t.Helper()
	var all metricdata.ResourceMetrics
	if err := r.reader.Collect(background, &all); err != nil {
		r.t.Fatal(err)
	}
	found := map[string]int64{}
	for _, scope := range all.ScopeMetrics {
		for _, each := range scope.Metrics {
			name := strings.TrimPrefix(each.Name, "redislock.client.")
			switch data := each.Data.(type) {
			case metricdata.Sum[int64]:
				for _, point := range data.DataPoints {
					found[name+r.shown(point.Attributes)] = point.Value
				}
			case metricdata.Histogram[float64]:
				for _, point := range data.DataPoints {
					if each.Unit != "s" || point.Sum < 0 || point.Sum > slack.Seconds() {
						r.t.Errorf("%s: %v %s", each.Name, point.Sum, each.Unit)
					}
					found[name+r.shown(point.Attributes)] = int64(point.Count)
				}
			default:
				r.t.Errorf("%s is a %T", each.Name, data)
			}
		}
	}
	return found
}

func (r *recording) eventually(what string, is func() bool) {
	r.t.Helper()
	for end := time.Now().Add(slack); !is(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("not within %v: %s; %v", slack, what, r.metrics())
		}
	}
}

func (r *recording) acquire(ctx context.Context, lock *redislock.Lock) *redislock.Hold {
	r.t.Helper()
	hold, err := lock.Acquire(ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	return hold
}

func (r *recording) expect(want map[string]int64) {
	r.t.Helper()
	if found := r.metrics(); !maps.Equal(found, want) {
		r.t.Errorf("recorded %v, and not %v", found, want)
	}
}

func TestMetricsAndSpansHaveTheNamesOfTheConvention(t *testing.T) {
	r := record(t, ":")
	request, parent := r.tracer.Tracer("test").Start(background, "request")
	hold := r.acquire(request, r.locks.Lock("invoice:1"))
	waiting, cancel := context.WithCancel(request)
	ended := make(chan error, 1)
	go func() {
		_, err := r.locks.Lock("invoice:1").Acquire(waiting)
		ended <- err
	}()
	r.eventually("it waits", func() bool {
		info, err := r.locks.Info(background, "invoice:1")
		return err == nil && info != nil && info.Waiters == 1
	})
	r.expect(map[string]int64{
		"hold.count lock.group=invoice": 1, "waiter.count lock.group=invoice": 1,
		"wait.duration lock.group=invoice outcome=granted": 1,
	})
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if _, got, err := r.locks.Lock("invoice:1").TryAcquire(request); got || err != nil {
		t.Fatal(got, err)
	}
	if _, _, err := r.locks.Semaphore("invoice:1", 2).TryAcquire(request); !errors.Is(err, redislock.ErrLockKindMismatch) {
		t.Fatal(err)
	}
	if err := hold.Release(background); err != nil {
		t.Fatal(err)
	}
	lost := r.acquire(request, r.locks.Lock("invoice:2"))
	if _, err := r.server.Ask("DEL invoice:2"); err != nil {
		t.Fatal(err)
	}
	<-lost.Context().Done()
	r.locks.Close(background)
	r.expect(map[string]int64{
		"hold.count lock.group=invoice": 0, "waiter.count lock.group=invoice": 0,
		"wait.duration lock.group=invoice outcome=granted":                              2,
		"wait.duration lock.group=invoice outcome=timeout":                              1,
		"wait.duration error.type=context.Canceled lock.group=invoice outcome=error":    1,
		"wait.duration error.type=ErrLockKindMismatch lock.group=invoice outcome=error": 1,
		"hold.duration lock.group=invoice outcome=released":                             1,
		"hold.duration lock.group=invoice loss.reason=push outcome=lost":                1,
	})
	spans := map[string]int{}
	for _, span := range r.spans.GetSpans() {
		if span.Parent.SpanID() != parent.SpanContext().SpanID() || span.EndTime.Before(span.StartTime) {
			t.Errorf("%s is not a child of the request: %v", span.Name, span.Parent)
		}
		spans[span.Name+r.shown(attribute.NewSet(span.Attributes...))+" "+span.Status.Code.String()]++
	}
	want := map[string]int{
		"redislock.client.wait lock.group=invoice outcome=granted Unset": 2, "redislock.client.wait lock.group=invoice outcome=timeout Unset": 1,
		"redislock.client.wait error.type=context.Canceled lock.group=invoice outcome=error " + codes.Error.String():    1,
		"redislock.client.wait error.type=ErrLockKindMismatch lock.group=invoice outcome=error " + codes.Error.String(): 1,
		"redislock.client.hold lock.group=invoice outcome=released Unset":                                               1,
		"redislock.client.hold lock.group=invoice loss.reason=push outcome=lost " + codes.Error.String():                1,
	}
	if !maps.Equal(spans, want) {
		t.Errorf("spans %v, and not %v", spans, want)
	}
}

func TestAnOutageCountsRenewalsAndEndsEachHoldOnce(t *testing.T) {
	r := record(t, "")
	lost := r.acquire(background, r.locks.Lock("lost", redislock.Lease(3*time.Second)))
	released := r.acquire(background, r.locks.Lock("released"))
	_ = r.server.Process.Signal(os.Kill)
	if err := released.Release(background); !errors.Is(err, redislock.ErrConnectionFailed) {
		t.Fatal(err)
	}
	<-lost.Context().Done()
	r.locks.Close(background)
	found := r.metrics()
	if found["renewal.failures error.type=ErrConnectionFailed"] < 1 {
		t.Errorf("no renewal failed: %v", found)
	}
	delete(found, "renewal.failures error.type=ErrConnectionFailed")
	want := map[string]int64{
		"hold.count": 0, "waiter.count": 0, "wait.duration outcome=granted": 2, "hold.duration outcome=released": 1,
		"hold.duration loss.reason=deadline outcome=lost": 1,
	}
	if !maps.Equal(found, want) {
		t.Errorf("recorded %v, and not %v", found, want)
	}
}

func TestACloseUnderABodyAndADroppedHoldEndTheirHolds(t *testing.T) {
	r := record(t, "")
	begun, done, returned := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(returned)
		_ = r.locks.Lock("body").Run(background, func(context.Context, *redislock.Hold) error {
			close(begun)
			<-done
			return nil
		})
	}()
	<-begun
	r.acquire(background, r.locks.Lock("dropped", redislock.Lease(time.Second)))
	r.eventually("the hold that was dropped has ended", func() bool {
		runtime.GC()
		return r.metrics()["hold.duration outcome=forgotten"] == 1
	})
	ctx, cancel := context.WithTimeout(background, 10*time.Millisecond)
	defer cancel()
	r.locks.Close(ctx)
	close(done)
	<-returned
	r.expect(map[string]int64{
		"hold.count": 0, "waiter.count": 0, "wait.duration outcome=granted": 2, "hold.duration outcome=forgotten": 1,
		"hold.duration loss.reason=close outcome=lost": 1,
	})
}
