package redislock

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Servers has the addresses of the servers, and the login. The driver adapters build it from the driver's settings.
type Servers struct {
	// Addrs are host:port, or the path of a socket: one server, or some of the sentinels or of the nodes of a cluster.
	Addrs []string
	// Primary is the primary's name in Sentinel. If it is set, Addrs are those of sentinels.
	Primary string
	// Cluster is true if Addrs are nodes of a cluster.
	Cluster bool

	// Username and Password are the login. Credentials, if set, is called for both before each new connection to a server.
	Username, Password string
	Credentials        func(ctx context.Context, server string) (username, password string, err error)
	// SentinelUsername and SentinelPassword are the login for the sentinels.
	SentinelUsername, SentinelPassword string
	// DB is the database: 0 in a cluster.
	DB int
	// TLS, if set, enables TLS. Without a ServerName, each server's certificate must have the name of its address.
	TLS *tls.Config
	// Dial, if set, opens the connections, including TLS, in place of a net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

func (c *Servers) check() error {
	if len(c.Addrs) == 0 {
		return invalid("Addrs must name a server, as 127.0.0.1:6379")
	}
	for _, address := range c.Addrs {
		_, port, err := net.SplitHostPort(address)
		number, numberErr := strconv.Atoi(port)
		isPath := c.Dial != nil || strings.HasPrefix(address, "/") // or what Dial understands
		if !isPath && (err != nil || numberErr != nil || number < 1 || number > 65535) {
			return invalid("Addrs must be host:port with a port from 1 to 65535, or the path of a socket, not %q", address)
		}
	}
	switch {
	case c.Cluster && c.Primary != "":
		return invalid("Primary is for Sentinel and Cluster is for a cluster: set only one of them")
	case c.Cluster && c.DB != 0:
		return invalid("DB must be 0 in a cluster, not %d", c.DB)
	case c.DB < 0:
		return invalid("DB must be 0 or more, not %d", c.DB)
	case !c.Cluster && c.Primary == "" && len(c.Addrs) > 1:
		return invalid("Addrs must be one server unless Cluster, or Primary for sentinels, is set: %d are given", len(c.Addrs))
	}
	return nil
}

// A door leads to one server. Goroutines connect one at a time, in order of arrival.
type door struct {
	gate chan struct{}
	// tries counts connections since the server last did what only a primary does; hasServed is true if it ever did.
	tries     atomic.Int32
	hasServed atomic.Bool
	// isOutdated is true once it was logged that the module of this server is too old.
	isOutdated atomic.Bool
	link       atomic.Pointer[link]
	failed     atomic.Pointer[failure]
}

func (d *door) ready() *link {
	if l := d.link.Load(); l != nil && !l.isClosed() {
		return l
	}
	return nil
}

// servers finds the servers of one client, and keeps a connection to each.
type servers struct {
	config   Servers
	log      *slog.Logger
	timeout  time.Duration
	onChange func(names []any)
	// onReconnect is called with a server that serves again over a new connection.
	onReconnect func(address string)
	finding     chan struct{}
	ctx         context.Context
	close       context.CancelFunc
	running     busy
	heard       atomic.Int64
	// refuses is true once a temporary refusal was logged.
	refuses atomic.Bool

	mu      sync.Mutex
	primary string
	last    string
	slots   map[int]string
	nodes   []string
	doors   map[string]*door
}

func newServers(config Servers, o *options) *servers {
	s := &servers{
		config: config, log: o.logger, timeout: o.serverTimeout, finding: make(chan struct{}, 1),
		slots: map[int]string{}, doors: map[string]*door{}, nodes: slices.Clone(config.Addrs),
	}
	s.ctx, s.close = context.WithCancel(context.Background())
	s.hears()
	if s.isSingle() {
		s.primary = config.Addrs[0]
	}
	return s
}

func (s *servers) isSingle() bool { return !s.config.Cluster && s.config.Primary == "" }

func (s *servers) hears() { s.heard.Store(int64(now())) }

func (s *servers) dialer(ctx context.Context, network, address string) (net.Conn, error) {
	if s.config.Dial != nil {
		return s.config.Dial(ctx, network, address)
	}
	plain := net.Dialer{KeepAlive: 15 * time.Second}
	if s.config.TLS == nil {
		return plain.DialContext(ctx, network, address)
	}
	secure := tls.Dialer{NetDialer: &plain, Config: s.config.TLS}
	return secure.DialContext(ctx, network, address)
}

// address returns the server of this lock, if known.
func (s *servers) address(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addressLocked(name)
}

func (s *servers) addressLocked(name string) string {
	if s.config.Cluster {
		return s.slots[slot(name)]
	}
	return s.primary
}

// forget records that this server may have ceased to be the primary.
func (s *servers) forget(address string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.config.Cluster {
		for number, at := range s.slots {
			if at == address {
				delete(s.slots, number)
			}
		}
	} else if !s.isSingle() && s.primary == address {
		s.primary = ""
	}
}

// moved records that a server says another one has this slot.
func (s *servers) moved(number int, address, by string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.slots[number] = beside(address, by)
}

// beside returns the address; without a host, it takes that of the server which named it.
func beside(address, by string) string {
	if host, port, err := net.SplitHostPort(address); err == nil && host == "" {
		host, _, _ = net.SplitHostPort(by)
		return net.JoinHostPort(host, port)
	}
	return address
}

// findFor finds the server of this lock, unless another goroutine has just done so.
func (s *servers) findFor(ctx context.Context, name string) (string, *failure) {
	if address := s.address(name); address != "" {
		return address, nil
	}
	var failed *failure
	if !s.alone(ctx, s.finding, func() {
		if s.address(name) == "" {
			failed = s.find(s.ctx)
		}
	}) {
		return "", tooLate(ctx)
	}
	if failed != nil {
		return "", failed
	}
	if address := s.address(name); address != "" {
		return address, nil
	}
	return "", broken(nil, "the primary is unknown: no node of the cluster serves this slot")
}

// find looks up the primary, or the primaries of a cluster.
func (s *servers) find(ctx context.Context) *failure {
	s.mu.Lock()
	nodes := slices.Clone(s.nodes)
	s.mu.Unlock()
	var why *failure
	for _, node := range nodes {
		err := s.askNode(ctx, node)
		if err == nil {
			// The server that answers is asked first the next time.
			s.mu.Lock()
			s.nodes = append([]string{node}, slices.DeleteFunc(s.nodes, func(other string) bool { return other == node })...)
			s.mu.Unlock()
			return nil
		}
		why = broken(err, "the primary is unknown: %s: %v", node, err)
	}
	return why
}

func (s *servers) askNode(ctx context.Context, node string) error {
	question, as := []string{"CLUSTER", "SLOTS"}, s.config
	if s.config.Primary != "" {
		question = []string{"SENTINEL", "GET-MASTER-ADDR-BY-NAME", s.config.Primary}
		as = Servers{Username: s.config.SentinelUsername, Password: s.config.SentinelPassword}
	}
	l, failed := s.dial(ctx, node, &as, nil)
	if failed != nil {
		return errors.New(failed.text)
	}
	defer l.end(broken(nil, "it is done"))
	reply, failed := l.ask(ctx, attemptTime, question)
	if failed != nil {
		return errors.New(failed.text)
	}
	rows, _ := reply.([]any)
	if s.config.Primary != "" {
		return s.takePrimary(rows)
	}
	return s.takeSlots(rows, node)
}

func (s *servers) takePrimary(words []any) error {
	if len(words) != 2 {
		return fmt.Errorf("this sentinel does not monitor a primary named %s", s.config.Primary)
	}
	host, _ := words[0].(string)
	port, _ := words[1].(string)
	address := net.JoinHostPort(host, port)
	s.mu.Lock()
	last := s.last
	s.primary, s.last = address, address
	s.mu.Unlock()
	if last != "" && last != address {
		s.log.Info("redislock: the primary changed", "server", address, "before", last)
	}
	return nil
}

func (s *servers) takeSlots(rows []any, by string) error {
	found, nodes := map[int]string{}, []string{}
	for _, row := range rows {
		columns, _ := row.([]any)
		if len(columns) < 3 {
			continue
		}
		first, _ := columns[0].(int64)
		last, _ := columns[1].(int64)
		for number, column := range columns[2:] {
			address := nodeAddress(column, by)
			if address == "" {
				continue
			}
			nodes = append(nodes, address)
			for at := max(0, first); number == 0 && at <= min(last, slots-1); at++ {
				found[int(at)] = address
			}
		}
	}
	if len(found) == 0 {
		return errors.New("it knows no node that serves slots")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.slots = found
	for _, address := range nodes {
		if !slices.Contains(s.nodes, address) {
			s.nodes = append(s.nodes, address)
		}
	}
	return nil
}

// nodeAddress parses a node from CLUSTER SLOTS; without a host, it is the node that answered.
func nodeAddress(column any, by string) string {
	words, _ := column.([]any)
	if len(words) < 2 {
		return ""
	}
	host, _ := words[0].(string)
	port, is := words[1].(int64)
	if host == "?" || !is {
		return ""
	}
	return beside(net.JoinHostPort(host, strconv.FormatInt(port, 10)), by)
}

func (s *servers) door(address string) *door {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.doorLocked(address)
}

func (s *servers) doorLocked(address string) *door {
	d := s.doors[address]
	if d == nil {
		d = &door{gate: make(chan struct{}, 1)}
		s.doors[address] = d
	}
	return d
}

// ready returns the connection to the server of this lock, if there is one.
func (s *servers) ready(name string) *link {
	s.mu.Lock()
	defer s.mu.Unlock()
	if address := s.addressLocked(name); address != "" {
		return s.doorLocked(address).ready()
	}
	return nil
}

// alone does this for one caller at a time. It continues when the caller's context ends, and returns false then.
// Otherwise callers with short waits would never be connected.
func (s *servers) alone(ctx context.Context, gate chan struct{}, work func()) bool {
	select {
	case gate <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	done := make(chan struct{})
	s.running.run(func() {
		defer close(done)
		defer func() { <-gate }()
		work()
	})
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}

func tooLate(ctx context.Context) *failure {
	return &failure{text: "connecting took too long", tooLate: true, cause: ctx.Err()}
}

// linkTo returns the connection to this server.
func (s *servers) linkTo(ctx context.Context, address string) (*link, *failure) {
	d := s.door(address)
	var l *link
	var failed *failure
	if !s.alone(ctx, d.gate, func() {
		if l = d.ready(); l == nil {
			l, failed = s.connectTo(d, address)
		}
	}) {
		if told := d.failed.Load(); told != nil {
			return nil, told // the failure of the previous attempt
		}
		return nil, tooLate(ctx)
	}
	return l, failed
}

func (s *servers) connectTo(d *door, address string) (*link, *failure) {
	if !sleep(s.ctx, backOff(int(d.tries.Add(1)-1))) {
		return nil, tooLate(s.ctx)
	}
	l, failed := s.dial(s.ctx, address, &s.config, s.onChange)
	d.failed.Store(failed)
	if failed != nil {
		return nil, failed
	}
	// A missing module is reported by the first request.
	if l.module != 0 && l.module < moduleVersionMin && !d.isOutdated.Swap(true) {
		s.log.Warn(fmt.Sprintf("redislock: the module redislock on %s is version %s, and this client needs %s or later: upgrade the module",
			address, shownVersion(l.module), shownVersion(moduleVersionMin)))
	}
	d.link.Store(l)
	if s.ctx.Err() != nil {
		l.end(broken(nil, "the locks were closed"))
	}
	s.hears()
	return l, nil
}

// busy counts background work.
type busy struct{ count atomic.Int64 }

func (b *busy) run(work func()) {
	b.count.Add(1)
	go func() {
		defer b.count.Add(-1)
		work()
	}()
}

// wait waits until all work has ended, or the context ends.
func (b *busy) wait(ctx context.Context) {
	for b.count.Load() > 0 && sleep(ctx, pause/2) {
	}
}

// sleep sleeps. It returns false if the context ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// end ends all connections, and makes no new ones.
func (s *servers) end() {
	s.close()
	s.mu.Lock()
	doors := slices.Collect(maps.Values(s.doors))
	s.mu.Unlock()
	for _, d := range doors {
		if l := d.link.Load(); l != nil {
			l.end(broken(nil, "the locks were closed"))
		}
	}
}
