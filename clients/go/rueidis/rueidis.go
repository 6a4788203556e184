// Package rueidis makes locks from the settings of a rueidis client: addresses, login, TLS, dialer, Sentinel and cluster.
//
//	locks, err := rueidis.Open(rueidis.ClientOption{InitAddress: []string{"127.0.0.1:6379"}})
//
// The locks have their own connections. A rueidis client does not expose its options, so keep the options that you made
// it from.
package rueidis

import (
	"context"
	"net"
	"slices"

	"github.com/redis/rueidis"
	"redislock.example/go"
)

// Open returns a client for the locks of the server, primary or cluster in these options.
func Open(option rueidis.ClientOption, opts ...redislock.Option) (*redislock.Locks, error) {
	return redislock.New(Servers(option), opts...)
}

// Servers returns these settings. As in rueidis, several addresses mean a cluster, or sentinels if MasterSet is set.
// One address means a single server: for a cluster with one known node, set Cluster, and use redislock.New.
func Servers(option rueidis.ClientOption) redislock.Servers {
	servers := redislock.Servers{
		Addrs:    slices.Clone(option.InitAddress),
		Primary:  option.Sentinel.MasterSet,
		Cluster:  len(option.InitAddress) > 1 && option.Sentinel.MasterSet == "" && !option.ForceSingleClient,
		Username: option.Username, Password: option.Password, DB: option.SelectDB,
		SentinelUsername: option.Sentinel.Username, SentinelPassword: option.Sentinel.Password,
		TLS: option.TLSConfig,
	}
	if give := option.AuthCredentialsFn; give != nil {
		servers.Credentials = func(_ context.Context, server string) (string, string, error) {
			given, err := give(rueidis.AuthCredentialsContext{Address: place(server)})
			return given.Username, given.Password, err
		}
	}
	switch dialer := option.Dialer; {
	case option.DialCtxFn != nil:
		servers.Dial = func(ctx context.Context, _, server string) (net.Conn, error) {
			return option.DialCtxFn(ctx, server, &dialer, option.TLSConfig)
		}
	case option.DialFn != nil: //nolint:staticcheck // it is deprecated, and goes on to work
		servers.Dial = func(_ context.Context, _, server string) (net.Conn, error) {
			return option.DialFn(server, &dialer, option.TLSConfig) //nolint:staticcheck // as above
		}
	}
	return servers
}

// A place is the address of a server.
type place string

func (place) Network() string  { return "tcp" }
func (p place) String() string { return string(p) }
