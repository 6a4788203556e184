package goredis_test

import (
	"context"
	"crypto/tls"
	"errors"
	"testing"

	"github.com/redis/go-redis/v9"
	"redislock.example/go"
	"redislock.example/go/goredis"
)

func TestTheSettingsOfAClientAreTaken(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "one:7000", Username: "ann", Password: "secret", DB: 3})
	defer func() { _ = client.Close() }()
	servers, err := goredis.Servers(client)
	if err != nil || servers.Addrs[0] != "one:7000" || servers.Username != "ann" || servers.Password != "secret" || servers.DB != 3 || servers.Dial == nil {
		t.Fatalf("%+v, %v", servers, err)
	}
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"one:1", "two:2"}, TLSConfig: &tls.Config{ServerName: "all"}})
	defer func() { _ = cluster.Close() }()
	servers, err = goredis.Servers(cluster)
	if err != nil || !servers.Cluster || len(servers.Addrs) != 2 || servers.TLS.ServerName != "all" {
		t.Fatalf("%+v, %v", servers, err)
	}
}

func TestAProviderOfCredentialsIsAsked(t *testing.T) {
	own := errors.New("the provider's own")
	client := redis.NewClient(&redis.Options{CredentialsProviderContext: func(context.Context) (string, string, error) {
		return "ann", "secret", own
	}})
	defer func() { _ = client.Close() }()
	servers, err := goredis.Servers(client)
	if err != nil {
		t.Fatal(err)
	}
	if user, password, err := servers.Credentials(context.Background(), "one:1"); user != "ann" || password != "secret" || !errors.Is(err, own) {
		t.Fatal(user, err)
	}
	plain := redis.NewClient(&redis.Options{CredentialsProvider: func() (string, string) { return "ben", "other" }})
	defer func() { _ = plain.Close() }()
	if servers, err = goredis.Servers(plain); err != nil {
		t.Fatal(err)
	}
	if user, _, err := servers.Credentials(context.Background(), "one:1"); user != "ben" || err != nil {
		t.Fatal(user, err)
	}
}

func TestAnotherClientIsRefused(t *testing.T) {
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "one:1"}})
	defer func() { _ = ring.Close() }()
	if _, err := goredis.Open(ring); !errors.Is(err, redislock.ErrInvalid) {
		t.Fatal(err)
	}
}

func TestAFailoverIsAskedOfTheSentinels(t *testing.T) {
	locks, err := goredis.OpenFailover(&redis.FailoverOptions{SentinelAddrs: []string{"one:1", "two:2"}, MasterName: "main"})
	if err != nil {
		t.Fatal(err)
	}
	locks.Close(context.Background())
	if _, err := goredis.OpenFailover(&redis.FailoverOptions{MasterName: "main"}); !errors.Is(err, redislock.ErrInvalid) {
		t.Fatal(err)
	}
}
