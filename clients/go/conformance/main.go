// The conformance kit's adapter: lines of JSON over standard input and output, as clients/conformance/PROTOCOL.md says.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"redislock.example/go"
)

// A request has the members of all operations.
type request struct {
	ID        uint64   `json:"id"`
	Op        string   `json:"op"`
	Mode      string   `json:"mode"`
	Addresses []string `json:"addresses"`
	Service   string   `json:"service"`
	Driver    string   `json:"driver"`
	Waiting   int      `json:"waiting_connections"`
	Login     *login   `json:"login"`
	Hold      string   `json:"hold"`
	Lock      string   `json:"lock"`
	Name      string   `json:"name"`
	Names     []string `json:"names"`
	Kind      string   `json:"kind"`
	Limit     int      `json:"limit"`
	LeaseMS   *int64   `json:"lease_ms"`
	WaitMS    *int64   `json:"wait_ms"`
	LongestMS *int64   `json:"longest_ms"`
	MinHoldMS *int64   `json:"min_hold_ms"`
	Prefix    string   `json:"prefix"`
	Label     string   `json:"label"`
	Nested    string   `json:"nested"`
	Stubborn  bool     `json:"stubborn"`
	Renew     *bool    `json:"renew"`
	Owner     string   `json:"owner"`
	BodyMS    int64    `json:"body_ms"`
	Raise     bool     `json:"raise"`
	Times     int      `json:"times"`
	Of        uint64   `json:"of"`
	Token     uint64   `json:"token"`
	Leader    string   `json:"leader"`
	Fail      bool     `json:"fail"`
	UntilLost string   `json:"until_lost"`

	// begin allows the next request to be taken.
	begin func()
}

type object map[string]any

// A told error has the members of an answer.
type told struct{ members object }

func (t *told) Error() string { return fmt.Sprint(t.members["message"]) }

var errBody = errors.New("the body's own error")

type adapter struct {
	locks  *redislock.Locks
	quit   func() error
	counts [5]atomic.Int64
	out    sync.Mutex

	mu      sync.Mutex
	holds   map[string]*redislock.Hold
	objects map[string]*redislock.Lock
	cancels map[uint64]context.CancelFunc
	leaders map[string]*candidate
}

type candidate struct {
	resign context.CancelFunc
	done   chan struct{}
}

func (a *adapter) say(message object) {
	line, err := json.Marshal(message)
	if err != nil {
		panic(err)
	}
	a.out.Lock()
	defer a.out.Unlock()
	if _, err := os.Stdout.Write(append(line, '\n')); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// Enabled, Handle, WithAttrs and WithGroup forward the library's log records.
func (a *adapter) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }

func (a *adapter) Handle(_ context.Context, record slog.Record) error {
	text := &strings.Builder{}
	text.WriteString(record.Message)
	record.Attrs(func(attr slog.Attr) bool {
		fmt.Fprintf(text, " %s=%v", attr.Key, attr.Value)
		return true
	})
	level := map[slog.Level]string{slog.LevelWarn: "warning", slog.LevelError: "error"}[record.Level]
	if level == "" {
		level = "info"
	}
	a.say(object{"event": "log", "level": level, "message": text.String()})
	return nil
}

func (a *adapter) WithAttrs([]slog.Attr) slog.Handler { return a }
func (a *adapter) WithGroup(string) slog.Handler      { return a }

// A calledContext allows the next request to be taken once the library has asked for the deadline.
type calledContext struct {
	context.Context
	begin func()
}

func (c *calledContext) Deadline() (time.Time, bool) {
	c.begin()
	return c.Context.Deadline()
}

// take starts a request. The next one is taken when this one has called the library, so the calls keep their order.
func (a *adapter) take(r *request) {
	begun := make(chan struct{})
	r.begin = sync.OnceFunc(func() { close(begun) })
	ctx, cancel := context.WithCancel(context.Background())
	a.mu.Lock()
	a.cancels[r.ID] = cancel
	a.mu.Unlock()
	go func() {
		ok, err := a.answer(ctx, r)
		r.begin()
		cancel()
		a.mu.Lock()
		delete(a.cancels, r.ID)
		a.mu.Unlock()
		if err != nil {
			a.say(object{"id": r.ID, "error": members(err)})
			return
		}
		if ok == nil {
			ok = object{}
		}
		a.say(object{"id": r.ID, "ok": ok})
	}()
	<-begun
}

func (a *adapter) answer(ctx context.Context, r *request) (object, error) {
	switch r.Op {
	case "open":
		return a.open(r)
	case "acquire":
		return a.acquire(ctx, r)
	case "try":
		lock := a.lock(r)
		r.begin()
		hold, isHeld, err := lock.TryAcquire(ctx)
		if err != nil || !isHeld {
			return nil, err
		}
		return a.keep(r, hold), nil
	}
	r.begin()
	switch r.Op {
	case "info":
		return a.info(ctx, r)
	case "ping":
		version, err := a.locks.Ping(ctx)
		return object{"version": version}, err
	case "check":
		hold := a.hold(r.Hold)
		if err := hold.Check(); err != nil {
			return nil, err
		}
		return object{"remaining_ms": hold.Remaining().Milliseconds()}, nil
	case "release":
		return nil, a.hold(r.Hold).Release(ctx)
	case "run":
		return a.run(ctx, r)
	case "cycle":
		return a.cycle(ctx, r)
	case "cancel":
		a.mu.Lock()
		cancel := a.cancels[r.Of]
		a.mu.Unlock()
		if cancel != nil {
			cancel()
		}
		return nil, nil
	case "fence":
		return nil, a.locks.CheckToken(ctx, r.Name, r.Token)
	case "lead":
		a.lead(r)
		return nil, nil
	case "resign":
		a.mu.Lock()
		leader := a.leaders[r.Leader]
		a.mu.Unlock()
		leader.resign()
		<-leader.done
		return nil, nil
	case "stats":
		return object{
			"grants": a.counts[0].Load(), "timeouts": a.counts[1].Load(), "losses": a.counts[2].Load(),
			"releases": a.counts[3].Load(), "waits": a.counts[4].Load(),
		}, nil
	case "threads":
		return process(), nil
	case "quit":
		return nil, a.quit()
	case "close":
		a.locks.Close(context.Background())
		return nil, nil
	}
	return nil, &told{object{"kind": "Unsupported", "message": "there is no such operation"}}
}

func (a *adapter) hold(id string) *redislock.Hold {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.holds[id]
}

func milliseconds(number int64) time.Duration { return time.Duration(number) * time.Millisecond }

// lock describes the lock of a request: the same object for requests that name one.
func (a *adapter) lock(r *request, more ...redislock.LockOption) *redislock.Lock {
	a.mu.Lock()
	defer a.mu.Unlock()
	if made := a.objects[r.Lock]; r.Lock != "" && made != nil {
		return made
	}
	lock := a.describe(r, append(options(r), more...))
	if r.Lock != "" {
		a.objects[r.Lock] = lock
	}
	return lock
}

func options(r *request) (opts []redislock.LockOption) {
	if r.LeaseMS != nil {
		opts = append(opts, redislock.Lease(milliseconds(*r.LeaseMS)))
	}
	if r.LongestMS != nil {
		opts = append(opts, redislock.MaxHold(milliseconds(*r.LongestMS)))
	}
	if r.MinHoldMS != nil {
		opts = append(opts, redislock.MinHold(milliseconds(*r.MinHoldMS)))
	}
	if r.Renew != nil && !*r.Renew {
		opts = append(opts, redislock.NoRenewal())
	}
	if r.Owner != "" {
		opts = append(opts, redislock.Owner(r.Owner))
	}
	return opts
}

func (a *adapter) describe(r *request, opts []redislock.LockOption) *redislock.Lock {
	switch {
	case len(r.Names) > 0 && r.Kind == "read":
		return a.locks.ReadMany(r.Names, opts...)
	case len(r.Names) > 0:
		return a.locks.Many(r.Names, opts...)
	case r.Kind == "read":
		return a.locks.Read(r.Name, opts...)
	case r.Kind == "write":
		return a.locks.Write(r.Name, opts...)
	case r.Kind == "semaphore":
		return a.locks.Semaphore(r.Name, r.Limit, opts...)
	}
	return a.locks.Lock(r.Name, opts...)
}

// take acquires the lock: with TryAcquire if the request does not wait, otherwise with a context deadline.
func take(ctx context.Context, lock *redislock.Lock, r *request) (*redislock.Hold, error) {
	if r.WaitMS == nil {
		return lock.Acquire(&calledContext{ctx, r.begin})
	}
	if *r.WaitMS > 0 {
		ctx, cancel := context.WithTimeout(ctx, milliseconds(*r.WaitMS))
		defer cancel()
		return lock.Acquire(&calledContext{ctx, r.begin})
	}
	r.begin()
	hold, isHeld, err := lock.TryAcquire(ctx)
	if err == nil && !isHeld {
		name := r.Name
		if len(r.Names) > 0 {
			name = strings.Join(r.Names, ", ")
		}
		err = &redislock.TimeoutError{Lock: name}
	}
	return hold, err
}

func (a *adapter) acquire(ctx context.Context, r *request) (object, error) {
	hold, err := take(ctx, a.lock(r), r)
	if err != nil {
		return nil, err
	}
	return a.keep(r, hold), nil
}

func (a *adapter) keep(r *request, hold *redislock.Hold) object {
	a.watch(r.Hold, hold)
	a.mu.Lock()
	a.holds[r.Hold] = hold
	a.mu.Unlock()
	return object{"token": hold.Token(), "remaining_ms": hold.Remaining().Milliseconds(), "owner": hold.Owner()}
}

func (a *adapter) info(ctx context.Context, r *request) (object, error) {
	info, err := a.locks.Info(ctx, r.Name)
	if err != nil {
		return nil, err
	}
	holders := []object{}
	if info == nil {
		return object{"holders": holders, "waiters": 0}, nil
	}
	for _, each := range info.Holders {
		holders = append(holders, object{"owner": each.Owner, "token": each.Token, "left_ms": each.Left.Milliseconds()})
	}
	return object{"holders": holders, "waiters": info.Waiters}, nil
}

// nested acquires the lock that the block holds, in the body of the block.
func (a *adapter) nested(ctx context.Context, r *request) any {
	_, err := a.describe(&request{Name: r.Name, Kind: r.Nested}, nil).Acquire(ctx)
	if err == nil {
		return "ok"
	}
	return members(err)["kind"]
}

// watch reports the loss of a hold.
func (a *adapter) watch(id string, hold *redislock.Hold) {
	context.AfterFunc(hold.Context(), func() {
		var lost *redislock.LostError
		if !errors.As(context.Cause(hold.Context()), &lost) {
			return
		}
		event := object{"event": "lost", "hold": id, "reason": lost.Reason}
		if lost.Cause != nil {
			event["cause"] = lost.Cause.Error()
		}
		a.say(event)
	})
}

func (a *adapter) run(ctx context.Context, r *request) (object, error) {
	var token uint64
	body := "cancelled"
	answer := object{}
	work := func(ctx context.Context, hold *redislock.Hold) error {
		token = hold.Token()
		a.watch(r.Hold, hold)
		if r.Nested != "" {
			answer["nested"] = a.nested(ctx, r)
		}
		if r.Stubborn {
			a.say(object{"event": "begun", "hold": r.Hold})
			ctx = context.WithoutCancel(ctx)
		}
		select {
		case <-time.After(milliseconds(r.BodyMS)):
		case <-ctx.Done():
			return ctx.Err()
		}
		body = "finished"
		if r.Raise {
			return errBody
		}
		return nil
	}
	var wait []redislock.LockOption
	if r.WaitMS != nil {
		wait = append(wait, redislock.Wait(milliseconds(*r.WaitMS)))
	}
	err := a.lock(r, wait...).Run(ctx, work)
	switch {
	case errors.Is(err, redislock.ErrLockLost):
		found := members(err)
		found["body"] = body
		return nil, &told{found}
	case errors.Is(err, errBody):
		body = "raised"
	case err != nil:
		return nil, err
	}
	answer["token"], answer["body"] = token, body
	return answer, nil
}

func (a *adapter) cycle(ctx context.Context, r *request) (object, error) {
	lock := a.lock(r)
	for range r.Times {
		hold, err := take(ctx, lock, r)
		if err != nil {
			return nil, err
		}
		if err := hold.Release(ctx); err != nil {
			return nil, err
		}
	}
	return object{"times": r.Times}, nil
}

func (a *adapter) lead(r *request) {
	leader := a.locks.Leader(r.Name, options(r)...)
	leader.OnElected = func(ctx context.Context, hold *redislock.Hold) error {
		a.say(object{"event": "elected", "leader": r.Leader, "token": hold.Token()})
		if r.Fail {
			return errBody
		}
		if r.UntilLost == "" {
			return nil
		}
		defer a.say(object{"event": "ended", "leader": r.Leader})
		return untilLost(ctx, hold, r.UntilLost)
	}
	leader.OnDeposed = func(lost *redislock.LostError) {
		a.say(object{"event": "deposed", "leader": r.Leader, "reason": lost.Reason})
	}
	failed := func(err error) { a.say(object{"event": "failed", "leader": r.Leader, "message": err.Error()}) }
	leader.OnError = failed
	ctx, resign := context.WithCancel(context.Background())
	stands := &candidate{resign, make(chan struct{})}
	a.mu.Lock()
	a.leaders[r.Leader] = stands
	a.mu.Unlock()
	go func() {
		defer close(stands.done)
		if err := leader.Run(ctx); err != nil && !errors.Is(err, context.Canceled) {
			failed(err)
		}
	}()
}

// untilLost works until the loss, and returns it as its error.
func untilLost(ctx context.Context, hold *redislock.Hold, until string) error {
	if until == "signal" {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	for {
		if err := hold.Check(); err != nil {
			return err
		}
		if until == "check" {
			time.Sleep(5 * time.Millisecond)
		}
	}
}

func main() {
	runtime.GOMAXPROCS(1)
	a := &adapter{
		holds: map[string]*redislock.Hold{}, objects: map[string]*redislock.Lock{},
		cancels: map[uint64]context.CancelFunc{}, leaders: map[string]*candidate{},
	}
	from := bufio.NewReader(os.Stdin)
	for {
		line, err := from.ReadBytes('\n')
		if err != nil {
			if !errors.Is(err, io.EOF) {
				fmt.Fprintln(os.Stderr, err)
			}
			break
		}
		r := &request{}
		if err := json.Unmarshal(line, r); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		a.take(r)
	}
	if a.locks != nil {
		a.locks.Close(context.Background())
	}
}
