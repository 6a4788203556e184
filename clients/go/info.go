package redislock

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Info has the holders and the waiters of a lock.
type Info struct {
	// Kind is "exclusive", "shared" or "limit". Limit is how many owners may hold a lock of the kind "limit".
	Kind  string
	Limit int
	// Holders are the first ten holders, oldest token first. Holds is the number of all holders.
	Holders []Holder
	Holds   int
	// Queue has the first ten waiters, the next one first. Waiters is the number of all waiters.
	Queue   []Waiter
	Waiters int
}

// A Holder holds a lock.
type Holder struct {
	Owner string
	Token uint64
	// Left is the rest of the lease, and Held the time since the grant.
	Left, Held time.Duration
}

// A Waiter waits for a lock.
type Waiter struct {
	Owner  string
	Waited time.Duration
}

// Info returns the holders and the waiters of a lock, or nil if there are none.
func (l *Locks) Info(ctx context.Context, name string) (*Info, error) {
	if name == "" {
		return nil, invalid("the name of a lock must not be empty")
	}
	return answered(ctx, l.core, name, func() (*Info, error) { return l.core.info(ctx, l.core.prefix+name) })
}

func (c *core) info(ctx context.Context, name string) (*Info, error) {
	a := &ask{name: name, words: []string{"LOCK.INFO", name}, until: now().after(waitMargin)}
	got, err := c.servers.request(ctx, a)
	if err != nil || got.reply == nil {
		return nil, err
	}
	fields, _ := got.reply.(map[string]any)
	info := &Info{Limit: int(number(fields["limit"])), Holds: int(number(fields["holds"])), Waiters: int(number(fields["waiters"]))}
	info.Kind, _ = fields["kind"].(string)
	for _, each := range rows(fields["holders"]) {
		owner, _ := each["owner"].(string)
		info.Holders = append(info.Holders, Holder{
			Owner: owner, Token: token(number(each["token"])),
			Left: time.Duration(number(each["lease-left-ms"])) * time.Millisecond,
			Held: time.Duration(number(each["held-ms"])) * time.Millisecond,
		})
	}
	for _, each := range rows(fields["queue"]) {
		owner, _ := each["owner"].(string)
		info.Queue = append(info.Queue, Waiter{owner, time.Duration(number(each["waited-ms"])) * time.Millisecond})
	}
	return info, nil
}

// version returns the module's version, if a primary has the module and this user may acquire locks.
func (c *core) version(ctx context.Context) (string, error) {
	a := &ask{name: c.prefix + "redislock:ping", pings: true, until: now().after(waitMargin)}
	a.words = []string{"LOCK.FENCE", a.name, strconv.Itoa(nobodys)}
	got, err := c.servers.request(ctx, a)
	if err != nil {
		return "", err
	}
	if version := moduleVersion(got.reply); version != 0 {
		return shownVersion(version), nil
	}
	return "", errorOf("ERR unknown command LOCK.ACQUIRE")
}

// pinged returns a primary's reply to HELLO if locks can be acquired there, or the reason why they cannot. The primary
// may have other slots than that of the given name.
func pinged(hello *call, name string, refused *failure) (any, *failure) {
	fields, _ := hello.reply.(map[string]any)
	if role := fields["role"]; role != "master" {
		return nil, &failure{refused: true, text: fmt.Sprintf("READONLY this server has the role %v", role)}
	}
	next := moved
	if refused != nil {
		next, _, _ = judge(refused.text)
	}
	if next == moved || next == asking {
		return hello.reply, nil
	}
	if strings.HasPrefix(refused.text, "NOPERM") {
		refused.text += ": a ping asks LOCK.FENCE " + name
	}
	return nil, refused
}

// moduleVersion returns the module's version in the reply to HELLO: 0 without a module.
func moduleVersion(hello any) int64 {
	fields, _ := hello.(map[string]any)
	for _, each := range rows(fields["modules"]) {
		if each["name"] == "redislock" {
			return number(each["ver"])
		}
	}
	return 0
}

func shownVersion(version int64) string {
	return fmt.Sprintf("%d.%d.%d", version/10_000, version/100%100, version%100)
}

func number(field any) int64 {
	found, _ := field.(int64)
	return found
}

func rows(field any) (found []map[string]any) {
	items, _ := field.([]any)
	for _, item := range items {
		if row, is := item.(map[string]any); is {
			found = append(found, row)
		}
	}
	return found
}
