// Command rivals measures a lock as programs in Go use it, by the library that it names. The scenario
// benches/bench/scenarios/rivals.py starts it and speaks to it.
//
//	rivals SUBJECT LEASE_MS ADDRESS[,ADDRESS...]
//
// Each line on standard input is answered by a line of JSON on standard output:
//
//	open own|shared TAKERS   makes takers, of a lock each or of one lock; they share up to ten clients
//	pairs MS                 each takes and frees its lock, again and again
//	handover MS              all take and free the one lock, again and again
//	loss                     the first takes its lock; somebody takes it away; how long until the library tells
//	take, free               the first takes its lock, or frees it
//	probe PID                that process is killed; how long until a taker has its lock, of those that ask one after the other
//	shut                     ends the takers; their clients stay
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

const (
	clientsMost = 10
	// A call of a library takes no longer: then it is an error, and the measurement fails.
	patience = 60 * time.Second
)

// A taker is one task that takes a lock and frees it. One goroutine at a time uses it.
type taker interface {
	take(ctx context.Context) error
	free(ctx context.Context) error
	close() error
}

// A teller is a taker whose library tells the holder of a loss.
type teller interface {
	taker
	lost() <-chan struct{}
	// takeAway ends the hold, as an operator does.
	takeAway(ctx context.Context) error
}

// A client is what one instance of a program has of its library.
type client interface {
	taker(name string) (taker, error)
}

type figures map[string]float64

type bench struct {
	open    func(addresses []string, lease time.Duration) (client, error)
	address []string
	lease   time.Duration
	clients []client
	takers  []taker
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "rivals: %v\n", err)
		os.Exit(1)
	}
}

func run(words []string) error {
	if len(words) != 3 {
		return errors.New("usage: rivals SUBJECT LEASE_MS ADDRESS[,ADDRESS...]")
	}
	open, isKnown := subjects[words[0]]
	leaseMs, err := strconv.Atoi(words[1])
	if !isKnown || err != nil {
		return fmt.Errorf("no such subject, or not a lease: %v", words)
	}
	b := &bench{open: open, address: strings.Split(words[2], ","), lease: time.Duration(leaseMs) * time.Millisecond}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		found, err := b.answer(strings.Fields(lines.Text()))
		if err != nil {
			return fmt.Errorf("%s: %w", lines.Text(), err)
		}
		if err := json.NewEncoder(os.Stdout).Encode(found); err != nil {
			return err
		}
	}
	return lines.Err()
}

func (b *bench) answer(words []string) (figures, error) {
	var verb string
	var number int
	if len(words) > 0 {
		verb = words[0]
		number, _ = strconv.Atoi(words[len(words)-1])
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if verb != "open" && len(b.takers) == 0 {
		return nil, errors.New("no takers are open")
	}
	switch verb {
	case "open":
		return figures{}, b.openTakers(words[1] == "shared", number)
	case "pairs":
		return b.pairs(ctx, time.Duration(number)*time.Millisecond)
	case "handover":
		return b.handOver(ctx, time.Duration(number)*time.Millisecond)
	case "loss":
		return b.loss(ctx)
	case "take":
		return figures{}, b.takers[0].take(ctx)
	case "free":
		return figures{}, b.takers[0].free(ctx)
	case "probe":
		return b.probe(number)
	case "shut":
		return figures{}, b.shut()
	}
	return nil, errors.New("not understood")
}

func (b *bench) openTakers(isShared bool, count int) error {
	for len(b.clients) < min(count, clientsMost) {
		made, err := b.open(b.address, b.lease)
		if err != nil {
			return err
		}
		b.clients = append(b.clients, made)
	}
	for number := range count {
		name := "contended"
		if !isShared {
			name = fmt.Sprintf("own:%d", number)
		}
		made, err := b.clients[number%len(b.clients)].taker(name)
		if err != nil {
			return err
		}
		b.takers = append(b.takers, made)
	}
	return nil
}

func (b *bench) shut() error {
	var found error
	for _, each := range b.takers {
		found = errors.Join(found, each.close())
	}
	b.takers = nil
	return found
}
