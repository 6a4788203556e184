package rueidis_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"testing"

	driver "github.com/redis/rueidis"
	"redislock.example/go"
	"redislock.example/go/rueidis"
)

func TestTheSettingsOfAClientAreTaken(t *testing.T) {
	servers := rueidis.Servers(driver.ClientOption{
		InitAddress: []string{"one:1"}, Username: "ann", Password: "secret", SelectDB: 3, TLSConfig: &tls.Config{ServerName: "one"},
	})
	if servers.Cluster || servers.Username != "ann" || servers.Password != "secret" || servers.DB != 3 || servers.TLS.ServerName != "one" {
		t.Fatalf("%+v", servers)
	}
	option := driver.ClientOption{InitAddress: []string{"one:1", "two:2"}}
	if servers = rueidis.Servers(option); !servers.Cluster || servers.Primary != "" {
		t.Fatalf("%+v", servers)
	}
	option.Sentinel.MasterSet = "main"
	if servers = rueidis.Servers(option); servers.Cluster || servers.Primary != "main" {
		t.Fatalf("%+v", servers)
	}
	if _, err := rueidis.Open(driver.ClientOption{}); !errors.Is(err, redislock.ErrInvalid) {
		t.Fatal(err)
	}
}

func TestTheCodeOfTheUserIsCalled(t *testing.T) {
	own := errors.New("the user's own")
	servers := rueidis.Servers(driver.ClientOption{
		InitAddress: []string{"one:1"},
		AuthCredentialsFn: func(of driver.AuthCredentialsContext) (driver.AuthCredentials, error) {
			return driver.AuthCredentials{Username: "ann", Password: of.Address.String()}, own
		},
		DialCtxFn: func(_ context.Context, server string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return nil, errors.New(server)
		},
	})
	if user, password, err := servers.Credentials(context.Background(), "one:1"); user != "ann" || password != "one:1" || !errors.Is(err, own) {
		t.Fatal(user, password, err)
	}
	if _, err := servers.Dial(context.Background(), "tcp", "one:1"); err == nil || err.Error() != "one:1" {
		t.Fatal(err)
	}
}
