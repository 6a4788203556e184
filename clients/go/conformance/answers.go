package main

import (
	"context"
	"errors"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"

	"redislock.example/go"
)

var kinds = []struct {
	kind error
	name string
}{
	{redislock.ErrClosed, "Cancelled"}, {redislock.ErrAlreadyHeld, "AlreadyHeld"}, {redislock.ErrDeadlock, "Deadlock"}, {redislock.ErrFenced, "Fenced"},
	{redislock.ErrLockKindMismatch, "LockKindMismatch"}, {redislock.ErrQueueFull, "QueueFull"},
	{redislock.ErrQuarantine, "Quarantine"}, {redislock.ErrNotConfirmed, "NotConfirmed"},
	{redislock.ErrModuleMissing, "ModuleMissing"}, {redislock.ErrLockLost, "LockLost"},
	{redislock.ErrReleased, "LockLost"}, {redislock.ErrConnectionFailed, "ConnectionFailed"},
	{redislock.ErrLockTimeout, "LockTimeout"}, {context.Canceled, "Cancelled"},
}

// members returns the members of an error in the kit's protocol.
func members(err error) object {
	var ready *told
	if errors.As(err, &ready) {
		return ready.members
	}
	found := object{"kind": "Other", "message": err.Error()}
	for _, each := range kinds {
		if errors.Is(err, each.kind) {
			found["kind"] = each.name
			break
		}
	}
	var e *redislock.Error
	if errors.As(err, &e) {
		if e.Cycle != nil {
			steps := [][]string{}
			for _, step := range e.Cycle {
				steps = append(steps, []string{step.Owner, step.Lock, step.Holder})
			}
			found["cycle"] = steps
		}
		if e.Kind == redislock.ErrQuarantine {
			found["left_ms"] = e.Left.Milliseconds()
		}
	}
	return found
}

// process returns the resources that this process uses.
func process() object {
	runtime.GC()
	debug.FreeOSMemory()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return object{}
	}
	number := func(word string) int {
		_, rest, _ := strings.Cut(string(status), "\n"+word)
		fields := strings.Fields(rest)
		if len(fields) == 0 {
			return 0
		}
		found, _ := strconv.Atoi(fields[0])
		return found
	}
	return object{"threads": number("Threads:"), "connections": connections(), "memory_kb": number("VmRSS:")}
}

// connections counts the TCP connections that this process has established.
func connections() (count int) {
	established := map[string]bool{}
	table, _ := os.ReadFile("/proc/net/tcp")
	for row := range strings.Lines(string(table)) {
		if columns := strings.Fields(row); len(columns) > 9 && columns[3] == "01" {
			established["socket:["+columns[9]+"]"] = true
		}
	}
	files, _ := os.ReadDir("/proc/self/fd")
	for _, file := range files {
		if link, err := os.Readlink("/proc/self/fd/" + file.Name()); err == nil && established[link] {
			count++
		}
	}
	return count
}
