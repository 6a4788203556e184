# Shortcuts. What they do stands in scripts/ and in Cargo.

CARGO ?= cargo
PORT ?= 6379

.PHONY: help tool build package reproduce arm64 run check test test-servers valgrind soak soak-kinds sabotage differ chaos chaos-soak storms simulate simulate-soak fuzz server-suites bench bench-guard growth monitoring clients mutants spec spec-small lint fmt clean

help:
	@echo "make run           build the module and start a server with it, ready for redis-cli (PORT=$(PORT))"
	@echo "make check         a change to a rule, checked without a server (two to five minutes)"
	@echo "make test          all tests, on the two servers that need no build (under 10 minutes)"
	@echo "make test-servers  the integration tests on every server version (builds those once)"
	@echo "make simulate      100000 lives of a group of servers, simulated (minutes; scripts/simulate SEEDS FIRST)"
	@echo "make simulate-soak the same without end, or for REDISLOCK_SIM_SECONDS"
	@echo "make valgrind      the Python integration tests under valgrind (about 15 minutes)"
	@echo "make soak          soak-kinds, and then chaos-soak: an hour and more"
	@echo "make soak-kinds    random use of all kinds of locks, for 5 minutes on each of two servers"
	@echo "                   (REDISLOCK_SOAK_SECONDS=300; REDISLOCK_SOAK_SEED repeats a load)"
	@echo "make chaos         faults at random on four topologies, side by side (about 90 seconds)"
	@echo "                   (scripts/chaos --help: one topology, another server, a seed)"
	@echo "make chaos-soak    the same for an hour (REDISLOCK_SOAK_SECONDS=3600), on two servers in turn"
	@echo "make sabotage      whether the checkers of histories notice each of 26 rules that a module leaves out (about 2 minutes),"
	@echo "                   and before that models and simulations what is left out of the core and the engine"
	@echo "make differ        random scripts on a primary, its replica and the replica's replica: whether all agree, and nobody"
	@echo "                   waits for what is free (a minute on every server version; scripts/differ --help); and then"
	@echo "                   whether the simulated server is like three real ones (half a minute; scripts/likeness --help)"
	@echo "make storms        10,000 and 19,000 waiting clients at once, on each of two servers"
	@echo "make fuzz          ten million inputs for the core and the commands, made to reach what others did not, and"
	@echo "                   FUZZ_RUNS=10000 for each of two servers (scripts/fuzz TARGET RUNS, scripts/fuzz grow SECONDS)"
	@echo "make server-suites the servers' own tests, the same with the module as without, and their fuzzer of payloads"
	@echo "                   with locks (hours; scripts/server-suites NAME for one server)"
	@echo "make mutants       whether tests notice each of thousands of small changes of core and engine (goes on where"
	@echo "                   it stopped; scripts/mutants --help)"
	@echo "make bench         what a lock costs, here and elsewhere (some 35 minutes; scripts/bench --help)"
	@echo "make bench-guard   whether a lock costs more instructions than before"
	@echo "make growth        whether cost grows with what there can be many of, and how long others wait (minutes;"
	@echo "                   scripts/growth short, scripts/growth --server NAME)"
	@echo "make spec          the specifications of failover and of Redlock, by a model checker (some 10 minutes)"
	@echo "make spec-small    the small ones of them (about a minute)"
	@echo "make monitoring    docs/operations/monitoring with the real exporter and the real Prometheus (under a minute)"
	@echo "make clients       the client libraries, by their own checks and by the conformance kit, and the kit itself"
	@echo "                   (some minutes; scripts/clients python|node|rust|go|java|kit)"
	@echo "make tool          the command-line tool, by its own check (a minute or two; tool/check --lint)"
	@echo "make lint          make check without the tests of the core, links of comments, dependency audit"
	@echo "make build         the module alone: target/release/libredislock.so"
	@echo "make package       packages of the module, the tool and the clients in target/packages, each opened and tried"
	@echo "make reproduce     whether two builds of the module in two folders are the same (minutes)"
	@echo "make arm64         the module built for arm64, and tested on an emulated server (minutes)"

build:
	@scripts/prepare run
	$(CARGO) build --release --locked

package:
	@scripts/package

reproduce:
	@scripts/package reproduce

arm64:
	@scripts/arm64

run: build
	@scripts/run $(PORT)

check:
	@scripts/check

test:
	@scripts/test embedded

test-servers:
	@scripts/test all

simulate:
	@scripts/simulate

simulate-soak:
	@scripts/simulate soak $(REDISLOCK_SIM_SECONDS)

valgrind:
	@scripts/test valgrind

soak: soak-kinds chaos-soak

soak-kinds:
	@scripts/test soak

chaos:
	@scripts/chaos

chaos-soak:
	@scripts/chaos --server redis-7.0 --seconds $$(($${REDISLOCK_SOAK_SECONDS:-3600} / 2))
	@scripts/chaos --server valkey-9.1 --seconds $$(($${REDISLOCK_SOAK_SECONDS:-3600} / 2))

sabotage:
	@scripts/sabotage

differ:
	@scripts/differ --server all $(if $(SEED),--seed $(SEED))
	@scripts/likeness $(if $(SEED),--seed $(SEED))

storms:
	@scripts/test storms

fuzz:
	@scripts/fuzz
	@scripts/fuzz server $(FUZZ_RUNS)

server-suites:
	@scripts/server-suites

mutants:
	@scripts/mutants

bench:
	@scripts/bench

bench-guard:
	@scripts/bench guard

growth:
	@scripts/growth

spec:
	@scripts/spec

spec-small:
	@scripts/spec small

monitoring:
	@scripts/test monitoring

clients:
	@scripts/clients

tool:
	@tool/check

lint:
	@scripts/lint

fmt:
	$(CARGO) fmt --all

clean:
	$(CARGO) clean
