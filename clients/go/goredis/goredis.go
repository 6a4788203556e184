// Package goredis makes locks from the settings of a go-redis client: address, login, TLS, dialer, Sentinel and cluster.
//
//	locks, err := goredis.Open(redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379"}))
//
// The locks have their own connections, because a driver's pool is not made for long waits and push messages. So you
// may close the client before the locks.
package goredis

import (
	"context"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"
	"redislock.example/go"
)

// Open returns a client for the locks of the server, primary or cluster that this driver client uses. It takes a
// *redis.Client, also one of NewFailoverClient, or a *redis.ClusterClient.
func Open(client redis.UniversalClient, opts ...redislock.Option) (*redislock.Locks, error) {
	servers, err := Servers(client)
	if err != nil {
		return nil, err
	}
	return redislock.New(servers, opts...)
}

// Servers returns the settings of this client.
func Servers(client redis.UniversalClient) (redislock.Servers, error) {
	switch client := client.(type) {
	case *redis.Client:
		o := client.Options()
		return with(redislock.Servers{
			Addrs: []string{o.Addr}, Username: o.Username, Password: o.Password, DB: o.DB, Dial: o.Dialer,
		}, o.CredentialsProvider, o.CredentialsProviderContext, o.StreamingCredentialsProvider != nil)
	case *redis.ClusterClient:
		o := client.Options()
		servers := redislock.Servers{
			Addrs: slices.Clone(o.Addrs), Cluster: true, Username: o.Username, Password: o.Password, TLS: o.TLSConfig, Dial: o.Dialer,
		}
		return with(servers, o.CredentialsProvider, o.CredentialsProviderContext, o.StreamingCredentialsProvider != nil)
	}
	return redislock.Servers{}, &redislock.Error{
		Kind:    redislock.ErrInvalid,
		Message: fmt.Sprintf("the client must be a *redis.Client or a *redis.ClusterClient, not %T", client),
	}
}

// OpenFailover returns a client for the locks of a primary that Sentinel monitors. Unlike with Open, the locks ask the
// sentinels themselves, and log a change of the primary.
func OpenFailover(o *redis.FailoverOptions, opts ...redislock.Option) (*redislock.Locks, error) {
	servers, err := with(redislock.Servers{
		Addrs: slices.Clone(o.SentinelAddrs), Primary: o.MasterName, Username: o.Username, Password: o.Password, DB: o.DB,
		SentinelUsername: o.SentinelUsername, SentinelPassword: o.SentinelPassword, TLS: o.TLSConfig, Dial: o.Dialer,
	}, o.CredentialsProvider, o.CredentialsProviderContext, o.StreamingCredentialsProvider != nil)
	if err != nil {
		return nil, err
	}
	return redislock.New(servers, opts...)
}

func with(
	servers redislock.Servers, plain func() (string, string),
	withContext func(context.Context) (string, string, error), isStreaming bool,
) (redislock.Servers, error) {
	switch {
	case isStreaming:
		return redislock.Servers{}, &redislock.Error{
			Kind: redislock.ErrInvalid, Message: "StreamingCredentialsProvider is not supported: use CredentialsProviderContext",
		}
	case withContext != nil:
		servers.Credentials = func(ctx context.Context, _ string) (string, string, error) { return withContext(ctx) }
	case plain != nil:
		servers.Credentials = func(context.Context, string) (string, string, error) {
			user, password := plain()
			return user, password, nil
		}
	}
	return servers, nil
}
