package redislock

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"
)

// listen serves by the fake server at a free port, by TLS where a certificate is given.
func listen(t *testing.T, certificate *tls.Certificate) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	address := listener.Addr().String()
	if certificate != nil {
		listener = tls.NewListener(listener, &tls.Config{Certificates: []tls.Certificate{*certificate}, MinVersion: tls.VersionTLS12})
	}
	server := &fakeServer{}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go server.serve(conn)
		}
	}()
	return address
}

func selfSigned(t *testing.T) (*tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true,
	}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(signed)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	return &tls.Certificate{Certificate: [][]byte{signed}, PrivateKey: key}, pool
}

func TestTLSIsSpokenWhereItIsAskedForAndElseFailsInTime(t *testing.T) {
	certificate, pool := selfSigned(t)
	secure, plain := listen(t, certificate), listen(t, nil)
	trusting := &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	for what, each := range map[string]struct {
		servers Servers
		works   bool
	}{
		"TLS to TLS":                   {Servers{Addrs: []string{secure}, TLS: trusting}, true},
		"plain to plain":               {Servers{Addrs: []string{plain}}, true},
		"TLS to a certificate unknown": {Servers{Addrs: []string{secure}, TLS: &tls.Config{MinVersion: tls.VersionTLS12}}, false},
		"TLS to plain":                 {Servers{Addrs: []string{plain}, TLS: trusting}, false},
		"plain to TLS":                 {Servers{Addrs: []string{secure}}, false},
		"plain to TLS of a sentinel":   {Servers{Addrs: []string{secure}, Primary: "group"}, false},
	} {
		locks, err := New(each.servers)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		hold, isHeld, err := locks.Lock("k").TryAcquire(context.Background())
		if isHeld != each.works || isHeld != (err == nil) || err != nil && !errors.Is(err, ErrConnectionFailed) {
			t.Errorf("%s: %v, %v", what, isHeld, err)
		}
		if err != nil && (what == "TLS to plain") != strings.Contains(err.Error(), "a port that speaks TLS?") {
			t.Errorf("%s: %v", what, err)
		}
		if err != nil && strings.HasPrefix(what, "plain to TLS") != strings.Contains(err.Error(), "is this a port for TLS?") {
			t.Errorf("%s: %v", what, err)
		}
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("%s: after %v", what, took)
		}
		if hold != nil {
			_ = hold.Release(context.Background())
		}
		locks.Close(context.Background())
	}
	servers, err := parseURL("rediss://ann:secret@localhost/2")
	if err != nil || servers.TLS == nil || servers.TLS.ServerName != "localhost" || servers.Addrs[0] != "localhost:6379" ||
		servers.Username != "ann" || servers.Password != "secret" || servers.DB != 2 {
		t.Errorf("%+v, %v", servers, err)
	}
}
