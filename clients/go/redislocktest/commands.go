package redislocktest

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// longestLease is the default of redislock.max-lease.
	longestLease = time.Hour
	// named is the number of holders and waiters that LOCK.INFO lists.
	named = 10
)

// Replies.

const null = "_\r\n"

// version is the module's version whose commands these are: 300 is 0.3.0.
const version = 300

func integer(number int64) string { return ":" + strconv.FormatInt(number, 10) + "\r\n" }

func bulk(text string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(text), text) }

func array(items []string) string {
	return fmt.Sprintf("*%d\r\n%s", len(items), strings.Join(items, ""))
}

func dictionary(items ...string) string {
	return fmt.Sprintf("%%%d\r\n%s", len(items)/2, strings.Join(items, ""))
}

// refuse formats an error, whose text has no line ends.
func refuse(format string, values ...any) string {
	return "-" + strings.NewReplacer("\r", " ", "\n", " ").Replace(fmt.Sprintf(format, values...)) + "\r\n"
}

// An asked is a request for locks.
type asked struct {
	names                []string
	owner                string
	kind                 int
	lease, queue, block  time.Duration
	token                int64
	isQueued, isBlocking bool
}

// The commands.

// command returns the reply; empty if that comes later.
func (t *table) command(c *connection, words []string) string {
	if len(words) == 0 {
		return refuse("ERR no command")
	}
	command := strings.ToUpper(words[0])
	switch command {
	case "HELLO":
		its := dictionary(bulk("name"), bulk("redislock"), bulk("ver"), integer(version))
		return dictionary(bulk("proto"), integer(3), bulk("role"), bulk("master"), bulk("modules"), array([]string{its}))
	case "CLIENT":
		c.isWarned = true
		return "+OK\r\n"
	case "SELECT":
		return "+OK\r\n"
	}
	if len(words) < 2 {
		return refuse("ERR redislocktest does not know these words of %s", command)
	}
	switch command {
	case "LOCK.FENCE":
		return t.fence(c, words[1], words[2:])
	case "LOCK.INFO":
		return t.info(words[1], time.Now())
	}
	a, err := parse(command, words[1:])
	if err != "" {
		return err
	}
	switch command {
	case "LOCK.ACQUIRE", "LOCK.MACQUIRE":
		return t.acquire(c, a, time.Now())
	case "LOCK.RENEW":
		h := t.holdOf(a)
		if h == nil {
			return integer(0)
		}
		h.until = time.Now().Add(a.lease)
		return integer(1)
	case "LOCK.RELEASE":
		t.leave(func(w *wait) bool { return w.owner == a.owner && slices.Contains(w.names, a.names[0]) })
		h := t.holdOf(a)
		if h == nil {
			return integer(0)
		}
		t.drop(func(other *hold) bool { return other == h })
		return integer(1)
	}
	return refuse("ERR redislocktest has no %s", command)
}

func parse(command string, words []string) (a *asked, err string) {
	wrong := refuse("ERR redislocktest does not know these words of %s", command)
	count := 1
	if command == "LOCK.MACQUIRE" {
		count, _ = strconv.Atoi(words[0])
		words = words[1:]
	}
	if count < 1 || len(words) <= count {
		return nil, wrong
	}
	a = &asked{names: words[:count], owner: words[count]}
	for rest := words[count+1:]; len(rest) > 0; {
		if rest[0] == "SHARED" {
			a.kind, rest = shared, rest[1:]
			continue
		}
		if len(rest) < 2 {
			return nil, wrong
		}
		number, failed := strconv.ParseInt(rest[1], 10, 64)
		if failed != nil || number < 0 {
			return nil, wrong
		}
		option, most := rest[0], time.Duration(min(number, 1<<40))*time.Millisecond
		rest = rest[2:]
		switch option {
		case "PX":
			if most > longestLease {
				return nil, refuse("ERR PX must be an integer from 1 to %d (milliseconds)", longestLease.Milliseconds())
			}
			a.lease = most
		case "QUEUE":
			a.queue, a.isQueued = most, true
		case "BLOCK":
			a.block, a.isBlocking = most, true
		case "TOKEN":
			a.token = number
		case "LIMIT":
			a.kind = int(number)
		default:
			return nil, wrong
		}
	}
	return a, ""
}

func (t *table) acquire(c *connection, a *asked, now time.Time) string {
	for _, name := range a.names {
		if other, is := t.kindOf(name); is && max(0, other) != max(0, a.kind) {
			return refuse("LOCKKIND this lock is of another kind now; all its holders and waiters must use that kind")
		}
	}
	if slices.ContainsFunc(t.holds, func(h *hold) bool { return h.owner == a.owner && slices.Contains(a.names, h.name) }) {
		return t.again(a, now)
	}
	isIts := func(w *wait) bool {
		return w.owner == a.owner && slices.ContainsFunc(w.names, func(name string) bool { return slices.Contains(a.names, name) })
	}
	isAnother := slices.ContainsFunc(t.waits, func(w *wait) bool {
		return isIts(w) && (w.kind != a.kind || !slices.Equal(w.names, a.names))
	})
	waits := a.isQueued || a.isBlocking
	if isAnother && waits {
		t.leave(isIts) // which loses the position
	}
	// A request that does not wait stays behind its owner's wait in another mode.
	if (waits || !isAnother) && t.fits(a.names, a.owner, a.kind) {
		t.waits = slices.DeleteFunc(t.waits, func(w *wait) bool {
			if isIts(w) {
				w.overtaken()
			}
			return isIts(w)
		})
		return integer(t.grant(a.names, a.owner, a.kind, a.lease))
	}
	if !waits {
		return null
	}
	if steps := t.chain(a.names, a.owner, a.kind, &[]string{a.owner}); steps != nil {
		return refuse("DEADLOCK this wait would never end: %s", strings.Join(steps, ", "))
	}
	w := &wait{a.names, a.owner, a.kind, a.lease, now, now.Add(max(a.queue, a.block)), nil}
	if a.isBlocking {
		w.blocked = c
	}
	if at := slices.IndexFunc(t.waits, isIts); at >= 0 {
		w.since = t.waits[at].since
		t.waits[at].overtaken()
		t.waits[at] = w
	} else {
		t.waits = append(t.waits, w)
	}
	if a.isBlocking {
		return ""
	}
	return null
}

// again handles another request of the same owner: it gets the same token, and the longer lease.
func (t *table) again(a *asked, now time.Time) string {
	var its []*hold
	for _, h := range t.holds {
		if h.owner == a.owner && slices.Contains(a.names, h.name) {
			its = append(its, h)
		}
	}
	for _, h := range its {
		// A writer may continue as a reader.
		isLowered := len(a.names) == 1 && h.kind == exclusive && a.kind == shared
		if len(its) < len(a.names) || h.token != its[0].token || h.kind != a.kind && !isLowered {
			return refuse("LOCKHELD '%s' is held by this owner already, but not in the requested way: release every key "+
				"that this request names, then ask again", a.names[0])
		}
	}
	for _, h := range its {
		h.kind = a.kind
		if until := now.Add(a.lease); until.After(h.until) {
			h.until = until
		}
	}
	t.changes(a.names)
	return integer(its[0].token)
}

func (t *table) grant(names []string, owner string, kind int, lease time.Duration) int64 {
	token, now := tokens.Add(1), time.Now()
	for _, name := range names {
		t.holds = append(t.holds, &hold{name, owner, kind, token, now, now.Add(lease)})
	}
	t.changes(names)
	return token
}

func (t *table) holdOf(a *asked) *hold {
	for _, h := range t.holds {
		if h.name == a.names[0] && h.owner == a.owner && (a.token == 0 || a.token == h.token) {
			return h
		}
	}
	return nil
}

func (t *table) fence(c *connection, name string, token []string) string {
	if c.isWarned {
		if t.watched[name] == nil {
			t.watched[name] = map[*connection]bool{}
		}
		t.watched[name][c] = true
	}
	highest := int64(0)
	for _, h := range t.holds {
		if h.name != name {
			continue
		}
		if len(token) > 0 && token[0] == strconv.FormatInt(h.token, 10) {
			return integer(1)
		}
		highest = max(highest, h.token)
	}
	switch {
	case len(token) > 0:
		return integer(0)
	case highest == 0:
		return null
	}
	return integer(highest)
}

func (t *table) info(name string, now time.Time) string {
	kind, is := t.kindOf(name)
	if !is {
		return null
	}
	ms := func(d time.Duration) string { return integer(d.Milliseconds()) }
	var its []*hold
	for _, h := range t.holds {
		if h.name == name {
			its = append(its, h)
		}
	}
	slices.SortStableFunc(its, func(one, other *hold) int { return cmp.Compare(one.token, other.token) })
	var holders, queue []string
	for _, h := range its {
		holders = append(holders, dictionary(bulk("owner"), bulk(h.owner), bulk("token"), integer(h.token),
			bulk("lease-left-ms"), ms(h.until.Sub(now)), bulk("held-ms"), ms(now.Sub(h.granted))))
	}
	for _, w := range t.waits {
		if slices.Contains(w.names, name) {
			queue = append(queue, dictionary(bulk("owner"), bulk(w.owner), bulk("waited-ms"), ms(now.Sub(w.since))))
		}
	}
	word, limit := "exclusive", null
	switch {
	case kind == shared:
		word = "shared"
	case kind > 0:
		word, limit = "limit", integer(int64(kind))
	}
	return dictionary(bulk("kind"), bulk(word), bulk("limit"), limit,
		bulk("holders"), array(holders[:min(named, len(holders))]), bulk("holds"), integer(int64(len(holders))),
		bulk("queue"), array(queue[:min(named, len(queue))]), bulk("waiters"), integer(int64(len(queue))))
}
