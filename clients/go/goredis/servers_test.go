package goredis_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"redislock.example/go"
	"redislock.example/go/goredis"
	"redislock.example/go/internal/testserver"
)

// slack is what a timed assertion allows: the machine may be busy.
const slack = 60 * time.Second

var ctx = context.Background()

func started(t *testing.T, server *testserver.Server, err error) *testserver.Server {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	return server
}

func ask(t *testing.T, server *testserver.Server, command string) string {
	t.Helper()
	reply, err := server.Ask(command)
	if err != nil || strings.HasPrefix(reply, "-") {
		t.Fatalf("%s: %s %v", command, reply, err)
	}
	return reply
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(slack); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", slack, what)
		}
	}
}

func opened(t *testing.T, locks *redislock.Locks, err error) *redislock.Locks {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { locks.Close(ctx) })
	return locks
}

func acquired(t *testing.T, locks *redislock.Locks, name string) *redislock.Hold {
	t.Helper()
	waiting, cancel := context.WithTimeout(ctx, slack)
	defer cancel()
	hold, err := locks.Lock(name).Acquire(waiting)
	if err != nil {
		t.Fatal(err)
	}
	return hold
}

func released(t *testing.T, hold *redislock.Hold) {
	t.Helper()
	if err := hold.Release(ctx); err != nil {
		t.Fatal(err)
	}
}

func TestATimeoutOfTheDriverEndsNoWait(t *testing.T) {
	server, err := testserver.Start()
	started(t, server, err)
	client := redis.NewClient(&redis.Options{
		Addr: server.Address, ReadTimeout: 50 * time.Millisecond, WriteTimeout: 50 * time.Millisecond, MaxRetries: 5,
	})
	first, err := goredis.Open(client)
	held := acquired(t, opened(t, first, err), "k")
	second, err := goredis.Open(client)
	waiter := opened(t, second, err)
	if err := client.Close(); err != nil { // the locks have connections of their own
		t.Fatal(err)
	}
	granted := make(chan *redislock.Hold, 1)
	go func() { granted <- acquired(t, waiter, "k") }()
	eventually(t, "it waits", func() bool {
		info, err := waiter.Info(ctx, "k")
		return err == nil && info != nil && info.Waiters == 1
	})
	greetings := func() string {
		return strings.Split(ask(t, server, "INFO commandstats"), "cmdstat_hello:")[1][:9]
	}
	before := greetings()
	time.Sleep(500 * time.Millisecond)
	if after := greetings(); after != before {
		t.Fatalf("it connects again: %s after %s", after, before)
	}
	released(t, held)
	select {
	case hold := <-granted:
		released(t, hold)
	case <-time.After(slack):
		t.Fatal("the waiter is not served")
	}
}

func TestThePrimaryIsFoundAgainAfterAFailover(t *testing.T) {
	primary, err := testserver.Start("--save", "")
	started(t, primary, err)
	_, port, _ := net.SplitHostPort(primary.Address)
	replica, err := testserver.Start("--replicaof", "127.0.0.1 "+port, "--repl-diskless-sync-delay", "0")
	started(t, replica, err)
	eventually(t, "the replica is in step", func() bool {
		return strings.Contains(ask(t, replica, "INFO replication"), "master_link_status:up")
	})
	sentinel, err := testserver.StartSentinel("main", primary.Address)
	started(t, sentinel, err)
	eventually(t, "the sentinel knows the replica", func() bool {
		return strings.Contains(ask(t, sentinel, "SENTINEL REPLICAS main"), "master-link-status\r\n$2\r\nok")
	})
	options := &redis.FailoverOptions{MasterName: "main", SentinelAddrs: []string{sentinel.Address}}
	failover, err := goredis.OpenFailover(options)
	own := opened(t, failover, err)
	client := redis.NewFailoverClient(options)
	t.Cleanup(func() { _ = client.Close() })
	dialed, err := goredis.Open(client)
	driven := opened(t, dialed, err)
	released(t, acquired(t, own, "a"))
	released(t, acquired(t, driven, "b"))
	ask(t, replica, "CONFIG SET redislock.quarantine 0")
	primary.Stop()
	ask(t, sentinel, "SENTINEL FAILOVER main")
	eventually(t, "the replica is the primary", func() bool {
		reply, _ := replica.Ask("INFO replication") // sentinels close all connections to a server that they promote
		return strings.Contains(reply, "role:master")
	})
	for name, locks := range map[string]*redislock.Locks{"a": own, "b": driven} {
		hold := acquired(t, locks, name)
		if holder := ask(t, replica, "LOCK.INFO "+name); !strings.Contains(holder, hold.Owner()) {
			t.Fatalf("the new primary does not know the hold: %s", holder)
		}
		released(t, hold)
	}
}

func TestLocksAreFoundOnTheNodesOfACluster(t *testing.T) {
	var nodes []*testserver.Server
	for slots := range 2 {
		bus, err := testserver.Reserve()
		if err != nil {
			t.Fatal(err)
		}
		node, err := testserver.Start("--cluster-enabled", "yes", "--cluster-port", fmt.Sprint(bus), "--save", "")
		nodes = append(nodes, started(t, node, err))
		ask(t, node, fmt.Sprintf("CLUSTER ADDSLOTSRANGE %d %d", slots*8192, slots*8192+8191))
		if slots > 0 {
			host, port, _ := net.SplitHostPort(nodes[0].Address)
			ask(t, nodes[0], fmt.Sprintf("CLUSTER SET-CONFIG-EPOCH %d", 1))
			ask(t, node, fmt.Sprintf("CLUSTER SET-CONFIG-EPOCH %d", 2))
			first := ask(t, nodes[0], "CONFIG GET cluster-port")
			ask(t, node, fmt.Sprintf("CLUSTER MEET %s %s %s", host, port, strings.Fields(first)[4]))
		}
	}
	for _, node := range nodes {
		eventually(t, "the cluster is there", func() bool { return strings.Contains(ask(t, node, "CLUSTER INFO"), "cluster_state:ok") })
	}
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{nodes[0].Address}})
	t.Cleanup(func() { _ = client.Close() })
	cluster, err := goredis.Open(client)
	locks := opened(t, cluster, err)
	for at, name := range []string{"bar", "foo"} { // of slot 5061, and of slot 12182
		hold := acquired(t, locks, name)
		if holder := ask(t, nodes[at], "LOCK.INFO "+name); !strings.Contains(holder, hold.Owner()) {
			t.Fatalf("node %d does not know the hold: %s", at, holder)
		}
		released(t, hold)
	}
}
