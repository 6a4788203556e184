package main

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	goredisdriver "github.com/redis/go-redis/v9"
	rueidisdriver "github.com/redis/rueidis"
	"redislock.example/go"
	"redislock.example/go/goredis"
	"redislock.example/go/rueidis"
)

type login struct {
	Password string `json:"password"`
	Fails    any    `json:"fails"`
}

var errLogin = errors.New("the provider's own error")

// give acts as the user's own code that returns a password.
func (l *login) give() func() (string, string, error) {
	var calls atomic.Int64
	return func() (string, string, error) {
		number := calls.Add(1)
		if l.Fails == "later" && number > 1 {
			return "", "", errLogin
		}
		numbers, _ := l.Fails.([]any)
		for _, each := range numbers {
			if each == float64(number) {
				return "", "", errLogin
			}
		}
		return "default", l.Password, nil
	}
}

func (a *adapter) open(r *request) (object, error) {
	count := func(which int) func(context.Context, string, time.Duration) {
		return func(context.Context, string, time.Duration) { a.counts[which].Add(1) }
	}
	opts := []redislock.Option{
		redislock.WithLogger(slog.New(a)),
		redislock.WithHooks(redislock.Hooks{
			Granted: count(0), TimedOut: count(1), Released: count(3),
			Lost:    func(context.Context, string, time.Duration, *redislock.LostError) { a.counts[2].Add(1) },
			Waiting: func(context.Context, string) { a.counts[4].Add(1) },
		}),
	}
	if r.LeaseMS != nil {
		opts = append(opts, redislock.WithLease(milliseconds(*r.LeaseMS)))
	}
	if r.Prefix != "" {
		opts = append(opts, redislock.WithPrefix(r.Prefix))
	}
	if r.Label != "" {
		opts = append(opts, redislock.WithLabel(r.Label))
	}
	if r.Waiting > 0 {
		opts = append(opts, redislock.WithMaxQueuedPerLock(r.Waiting))
	}
	features := []string{
		"push", "cancel", "body", "tasks", "leader", "log", "stats", "sentinel", "cluster", "fence", "min_hold", "nested",
		"stubborn",
	}
	if r.Mode == "independent" {
		return object{"drivers": []string{"url", "goredis", "rueidis"}, "features": []string{}}, nil
	}
	var err error
	switch r.Driver {
	case "goredis":
		features = append(features, "client", "provider")
		err = a.openGoRedis(r, opts)
	case "rueidis":
		features = append(features, "provider")
		err = a.openRueidis(r, opts)
	default:
		err = a.openURL(r, opts)
	}
	return object{"drivers": []string{"url", "goredis", "rueidis"}, "features": features}, err
}

func (a *adapter) openURL(r *request, opts []redislock.Option) (err error) {
	if r.Mode == "single" {
		a.locks, err = redislock.Open("redis://"+r.Addresses[0], opts...)
		return err
	}
	servers := redislock.Servers{Addrs: r.Addresses, Cluster: r.Mode == "cluster"}
	if r.Mode == "sentinel" {
		servers.Primary = r.Service
	}
	a.locks, err = redislock.New(servers, opts...)
	return err
}

func (a *adapter) openGoRedis(r *request, opts []redislock.Option) (err error) {
	var client goredisdriver.UniversalClient
	switch r.Mode {
	case "cluster":
		client = goredisdriver.NewClusterClient(&goredisdriver.ClusterOptions{Addrs: r.Addresses})
	case "sentinel":
		client = goredisdriver.NewFailoverClient(&goredisdriver.FailoverOptions{SentinelAddrs: r.Addresses, MasterName: r.Service})
	default:
		o := &goredisdriver.Options{Addr: r.Addresses[0]}
		if r.Login != nil {
			give := r.Login.give()
			o.CredentialsProviderContext = func(context.Context) (string, string, error) { return give() }
		}
		client = goredisdriver.NewClient(o)
	}
	a.quit = client.Close
	a.locks, err = goredis.Open(client, opts...)
	return err
}

func (a *adapter) openRueidis(r *request, opts []redislock.Option) (err error) {
	option := rueidisdriver.ClientOption{InitAddress: r.Addresses}
	if r.Mode == "sentinel" {
		option.Sentinel.MasterSet = r.Service
	}
	if r.Login != nil {
		give := r.Login.give()
		option.AuthCredentialsFn = func(rueidisdriver.AuthCredentialsContext) (given rueidisdriver.AuthCredentials, err error) {
			given.Username, given.Password, err = give()
			return given, err
		}
	}
	servers := rueidis.Servers(option)
	servers.Cluster = r.Mode == "cluster" // of which the kit may name one node
	a.locks, err = redislock.New(servers, opts...)
	return err
}
