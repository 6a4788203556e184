package main

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"sync"
	"time"

	bsm "github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	pool "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	etcd "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
	"redislock.example/go"
)

// The subjects by name. What a library leaves to its user, as how often to try, is as its own README has it.
var subjects = map[string]func([]string, time.Duration) (client, error){
	"redislock":     openOurs,
	"redsync":       openRedsync,
	"bsm/redislock": openBsm,
	"etcd":          openEtcd,
}

// The name by which sentinels know the primary.
const group = "group"

type ours struct {
	locks *redislock.Locks
	redis *redis.Client
}

func openOurs(addresses []string, lease time.Duration) (client, error) {
	servers := redislock.Servers{Addrs: addresses}
	if len(addresses) > 1 {
		servers.Primary = group
	}
	locks, err := redislock.New(servers, redislock.WithLease(lease), redislock.WithServerTimeout(patience),
		redislock.WithLogger(slog.New(slog.DiscardHandler)))
	return &ours{locks, redis.NewClient(&redis.Options{Addr: addresses[0]})}, err
}

func (c *ours) taker(name string) (taker, error) {
	return &ourTaker{client: c, name: name, lock: c.locks.Lock(name)}, nil
}

type ourTaker struct {
	client *ours
	name   string
	lock   *redislock.Lock
	hold   *redislock.Hold
}

func (t *ourTaker) take(ctx context.Context) (err error) {
	t.hold, err = t.lock.Acquire(ctx)
	return err
}

func (t *ourTaker) free(ctx context.Context) error { return t.hold.Release(ctx) }
func (t *ourTaker) close() error                   { return nil }
func (t *ourTaker) lost() <-chan struct{}          { return t.hold.Context().Done() }

func (t *ourTaker) takeAway(ctx context.Context) error { return t.client.redis.Del(ctx, t.name).Err() }

type redsyncClient struct {
	sync  *redsync.Redsync
	lease time.Duration
}

func openRedsync(addresses []string, lease time.Duration) (client, error) {
	made := redis.NewClient(&redis.Options{Addr: addresses[0]})
	return &redsyncClient{redsync.New(pool.NewPool(made)), lease}, nil
}

func (c *redsyncClient) taker(name string) (taker, error) {
	// It gives up after 32 attempts by default.
	return &redsyncTaker{c.sync.NewMutex(name, redsync.WithExpiry(c.lease), redsync.WithTries(math.MaxInt32))}, nil
}

type redsyncTaker struct{ mutex *redsync.Mutex }

func (t *redsyncTaker) take(ctx context.Context) error { return t.mutex.LockContext(ctx) }
func (t *redsyncTaker) close() error                   { return nil }

func (t *redsyncTaker) free(ctx context.Context) error {
	_, err := t.mutex.UnlockContext(ctx)
	return err
}

type bsmClient struct {
	locker *bsm.Client
	lease  time.Duration
}

func openBsm(addresses []string, lease time.Duration) (client, error) {
	return &bsmClient{bsm.New(redis.NewClient(&redis.Options{Addr: addresses[0]})), lease}, nil
}

func (c *bsmClient) taker(name string) (taker, error) { return &bsmTaker{client: c, name: name}, nil }

type bsmTaker struct {
	client *bsmClient
	name   string
	lock   *bsm.Lock
}

func (t *bsmTaker) take(ctx context.Context) (err error) {
	retry := &bsm.Options{RetryStrategy: bsm.LinearBackoff(100 * time.Millisecond)}
	t.lock, err = t.client.locker.Obtain(ctx, t.name, t.client.lease, retry)
	return err
}

func (t *bsmTaker) free(ctx context.Context) error { return t.lock.Release(ctx) }
func (t *bsmTaker) close() error                   { return nil }

type etcdClient struct {
	client *etcd.Client
	lease  time.Duration
}

func openEtcd(addresses []string, lease time.Duration) (client, error) {
	made, err := etcd.New(etcd.Config{Endpoints: addresses, DialTimeout: patience, Logger: zap.NewNop()})
	return &etcdClient{made, lease}, err
}

// A session each: takers of one session would be one owner.
func (c *etcdClient) taker(name string) (taker, error) {
	session, err := concurrency.NewSession(c.client, concurrency.WithTTL(int(c.lease/time.Second)))
	if err != nil {
		return nil, err
	}
	return &etcdTaker{session: session, mutex: concurrency.NewMutex(session, name)}, nil
}

type etcdTaker struct {
	session *concurrency.Session
	mutex   *concurrency.Mutex
	closing sync.Once
}

func (t *etcdTaker) take(ctx context.Context) error { return t.mutex.Lock(ctx) }
func (t *etcdTaker) free(ctx context.Context) error { return t.mutex.Unlock(ctx) }
func (t *etcdTaker) lost() <-chan struct{}          { return t.session.Done() }

func (t *etcdTaker) takeAway(ctx context.Context) error {
	_, err := t.session.Client().Revoke(ctx, t.session.Lease())
	return err
}

func (t *etcdTaker) close() (err error) {
	select {
	case <-t.session.Done(): // its lease was revoked
		t.session.Orphan()
	default:
		t.closing.Do(func() { err = t.session.Close() })
	}
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
