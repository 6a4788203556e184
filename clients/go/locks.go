// Package redislock acquires locks on Redis and Valkey servers that run the redislock module. It has exclusive locks,
// readers and writers, semaphores, and several locks at once, all with leases, fencing tokens and fair queues.
//
//	locks, err := redislock.Open("redis://127.0.0.1:6379")
//	...
//	defer locks.Close(ctx)
//	hold, err := locks.Lock("invoice:42").Acquire(ctx)
//	if err != nil {
//		return err
//	}
//	defer hold.Release(ctx)
//	pay(hold.Context(), hold.Token()) // the context is cancelled if the lock is lost
//
// Goroutines may share a Locks, a Lock and a Hold. The library opens its own connections.
package redislock

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Locks is a client for the locks of one server, of a primary that Sentinel monitors, or of a cluster. Create one for a
// program.
type Locks struct {
	core *core
	once sync.Once
}

// Open returns a client for the locks of one server. The address is redis://user:password@host:port/db, rediss:// for
// TLS, or unix:///path/to/socket. It connects when it is first used. For Sentinel and clusters, see [New].
func Open(address string, opts ...Option) (*Locks, error) {
	servers, err := parseURL(address)
	if err != nil {
		return nil, err
	}
	return New(servers, opts...)
}

func parseURL(address string) (Servers, error) {
	if strings.TrimSpace(address) == "" {
		return Servers{}, invalid("the address must be redis://user:password@host:port/db, not empty: %q", address)
	}
	parsed, err := url.Parse(address)
	if err != nil || parsed.Fragment != "" { // its text contains the password
		return Servers{}, invalid("the address must be a URL like redis://user:password@host:port/db: " +
			"percent-encode special characters in the password, for example %%25 for %% and %%23 for #")
	}
	password, _ := parsed.User.Password()
	servers := Servers{Username: parsed.User.Username(), Password: password}
	for parameter := range parsed.Query() {
		if parsed.Scheme != "unix" || parameter != "db" {
			return Servers{}, invalid("the address must have no parameter %q: pass options as arguments of Open", parameter)
		}
	}
	path := strings.TrimPrefix(parsed.Path, "/")
	switch parsed.Scheme {
	case "unix":
		servers.Addrs = []string{parsed.Path}
		path = parsed.Query().Get("db")
	case "redis", "rediss":
		host := cmp.Or(parsed.Hostname(), "127.0.0.1")
		servers.Addrs = []string{net.JoinHostPort(host, cmp.Or(parsed.Port(), "6379"))}
		if parsed.Scheme == "rediss" {
			servers.TLS = &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12}
		}
	default:
		return Servers{}, invalid("the address must begin with redis://, rediss:// or unix://, not with the scheme %q", parsed.Scheme)
	}
	if path != "" {
		if servers.DB, err = strconv.Atoi(path); err != nil {
			return Servers{}, invalid("the database in the address must be a number, not %q", path)
		}
	}
	return servers, nil
}

// New returns a client for the locks of these servers. It connects when it is first used.
func New(servers Servers, opts ...Option) (*Locks, error) {
	o := &options{
		lease: defaultLease, logger: slog.Default(), label: defaultLabel(),
		serverTimeout: defaultServerTimeout, maxQueued: maxQueued, hooks: Hooks{}.filled(),
	}
	for _, set := range opts {
		set(o)
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	if err := servers.check(); err != nil {
		return nil, err
	}
	c := &core{
		options:  o,
		servers:  newServers(servers, o),
		lines:    &lines{lines: map[string]*line{}, most: o.maxQueued},
		keeper:   &keeper{names: map[string]map[*held]struct{}{}, begins: make(chan struct{}), wake: make(chan struct{}, 1)},
		blocking: make(chan struct{}, o.maxQueued),
		errands:  errands{same: map[string][]*errand{}},
	}
	c.servers.onChange = func(names []any) {
		c.lines.changed(names)
		c.keeper.changed(names)
	}
	c.servers.onReconnect = func(server string) { o.hooks.Reconnected(server) }
	c.keep.Store(int64(keepTime))
	c.longestBlock.Store(int64(longBlock))
	c.closing, c.close = context.WithCancelCause(context.Background())
	c.ctx, c.stop = context.WithCancel(context.Background())
	return &Locks{core: c}, nil
}

// Lock describes an exclusive lock. Nothing is sent until it is acquired.
func (l *Locks) Lock(name string, opts ...LockOption) *Lock {
	return l.describe(exclusive, 0, []string{name}, opts)
}

// Write describes an exclusive lock, as the counterpart of Read. It is the same as Lock.
func (l *Locks) Write(name string, opts ...LockOption) *Lock { return l.Lock(name, opts...) }

// Read describes a lock that readers share. Write and Lock exclude them.
func (l *Locks) Read(name string, opts ...LockOption) *Lock {
	return l.describe(shared, 0, []string{name}, opts)
}

// Semaphore describes a lock that up to limit owners hold at once: from 1 to 1,000,000. All clients must use the same
// limit for a name.
func (l *Locks) Semaphore(name string, limit int, opts ...LockOption) *Lock {
	return l.describe(limited, limit, []string{name}, opts)
}

// Many describes 1 to 64 exclusive locks that are acquired together, all or none, with one token. In a cluster, all
// names must be in one slot: use a hash tag.
func (l *Locks) Many(names []string, opts ...LockOption) *Lock {
	return l.describe(exclusive, 0, names, opts)
}

// ReadMany describes 1 to 64 locks that readers share, and that are acquired together, all or none, with one token.
func (l *Locks) ReadMany(names []string, opts ...LockOption) *Lock {
	return l.describe(shared, 0, names, opts)
}

func (l *Locks) describe(kind kind, limit int, names []string, opts []LockOption) *Lock {
	k := &Lock{locks: l, kind: kind, limit: limit}
	k.options.lease = l.core.lease
	for _, set := range opts {
		set(&k.options)
	}
	k.names = make([]string, len(names))
	for i, name := range names {
		k.names[i] = l.core.prefix + name
	}
	k.invalid = k.check(names)
	return k
}

// CheckToken asks the server whether the token belongs to a live hold of the lock. If not, it returns ErrFenced.
func (l *Locks) CheckToken(ctx context.Context, name string, token uint64) error {
	if name == "" || token == 0 || token >= 1<<53 {
		return invalid("CheckToken needs a name and a token from 1 to 2^53 - 1, not %q and %d", name, token)
	}
	isLive, err := answered(ctx, l.core, name, func() (bool, error) {
		return l.core.fence(ctx, l.core.prefix+name, int64(token))
	})
	if err == nil && !isLive {
		return &Error{Kind: ErrFenced, Lock: name, Message: "the token " + strconv.FormatUint(token, 10) + " is not that of a live hold"}
	}
	return err
}

// Ping checks that a primary with the module answers, and returns the module's version, for example "0.3.0". It fails
// with ErrConnectionFailed if no primary answers or the server is loading its data, or with ErrModuleMissing. It calls
// LOCK.FENCE on redislock:ping (with the prefix in front), which changes nothing, so the user needs the right to do that.
func (l *Locks) Ping(ctx context.Context) (string, error) {
	return answered(ctx, l.core, "", func() (string, error) { return l.core.version(ctx) })
}

// answered returns the answer to a query about the lock of this name, unless the Locks are closed.
func answered[T any](ctx context.Context, c *core, name string, ask func() (T, error)) (got T, err error) {
	if c.closing.Err() != nil {
		return got, closed()
	}
	got, err = ask()
	if err != nil {
		err = ended(ctx, named(err, name, 0))
	}
	return got, err
}

// ended returns the error, or that of the context if it ended the request.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return endOf(ctx)
	}
	return err
}

// endOf returns the cause of a context's end, which is also that context's error; nil if it has not ended.
func endOf(ctx context.Context) error {
	cause := context.Cause(ctx)
	if cause == nil || errors.Is(cause, ctx.Err()) {
		return cause
	}
	return fmt.Errorf("%w: %w", ctx.Err(), cause)
}

func closed() error { return &Error{Kind: ErrClosed, Message: "the Locks are closed"} }

// Close ends all holds, waits and connections: acquires fail with ErrClosed, the contexts of holds are cancelled, and
// holds are released. It waits for the functions of Run, and then for the server, until ctx ends, or for 5 s if ctx has
// no deadline. Even if ctx has ended, it waits up to a quarter of a second for the releases. A function of Run that runs
// longer keeps its lease. Close may be called several times.
func (l *Locks) Close(ctx context.Context) {
	l.once.Do(func() {
		if _, has := ctx.Deadline(); !has {
			with, cancel := context.WithTimeout(ctx, farewell-500*time.Millisecond)
			defer cancel()
			ctx = with
		}
		l.core.shut(ctx)
	})
}
