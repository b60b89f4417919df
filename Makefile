# lockd: build, run, test. `make` alone lists the targets.

GO      ?= go
VERSION ?= $(shell git describe --always --dirty --tags 2>/dev/null || echo unversioned)
LDFLAGS := -s -w -X github.com/seed70370324/lockd/internal/version.Version=$(VERSION)
FOR     ?= 60s
PROTOS  := store/pb/store.proto internal/wire/pb/lockd.proto replog/pb/replog.proto

# The race detector needs cgo and a C compiler; without one the tests run
# without it and say so.
RACE := $(shell if command -v cc >/dev/null 2>&1 && [ "$$($(GO) env CGO_ENABLED)" = 1 ]; then echo -race; fi)

.PHONY: help build run demo test check cases sim sim-coverage sim-pair attack bench bench-pair bench-zookeeper proto fuzz soak slow-link watch-count

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## build bin/lockd and bin/lockctl
	@mkdir -p bin
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/ ./lockd ./client/lockctl

run: build ## start a cell of three replicas on 127.0.0.1:7101-7103, Ctrl-C stops it
	@bin/lockd local --replicas 3

demo: build ## kill the master, freeze a lock's holder, and see the right thing happen
	@bin/lockctl demo

test: check ## everything CI runs: checks, tests, simulator
	@if [ -z "$(RACE)" ]; then echo "note: no C compiler, the tests run without the race detector"; fi
	$(GO) test $(RACE) -timeout 20m ./...

check: ## vet, staticcheck, formatting, generated code, builds for darwin and arm64
	@GO=$(GO) sh internal/tools/check.sh

cases: ## one test for each fault that was once seen (ONLY=text: those lines of internal/tools/cases/list.txt)
	cd internal/tools && $(GO) build -o ../../.cache/cases ./cases
	@.cache/cases '$(ONLY)'

# The main package is among them since the go command writes no counters without it.
COVERED = ./paxos,./replog,./replog/codec,./store,./lockd/master,./lockd/replica,./client/machine,./sim/cmd/sim
SEEDS ?= 300
sim-coverage: ## which statements of what decides random runs reach (SEEDS=300; MISSED=-missed lists the others)
	rm -rf .cache/cover && mkdir -p .cache/cover
	$(GO) build -cover -coverpkg=$(COVERED) -o .cache/sim-cover ./sim/cmd/sim
	GOCOVERDIR=.cache/cover .cache/sim-cover -n $(SEEDS) || echo 'a seed failed (above); the figures below are of all of them'
	$(GO) tool covdata textfmt -i=.cache/cover -o=.cache/cover.txt
	$(GO) run ./sim/cmd/coverage $(MISSED) .cache/cover.txt

sim: ## run the simulator on fresh seeds (FOR=60s says how long)
	$(GO) run ./sim/cmd/sim -for $(FOR)

sim-pair: ## CPU seconds of this simulator and of the revision OLD's for the same plans, in turn (SEEDS_OF_PAIR=1-200 PAIRS=3)
	@GO=$(GO) sh internal/tools/simpair.sh '$(OLD)' $(or $(SEEDS_OF_PAIR),1-200) $(or $(PAIRS),3)

attack: build ## run hostile clients against a real cell and print what each does to others (ARGS='-only listings': see docs/attacks.md)
	$(GO) build -o .cache/attack ./internal/attack
	@.cache/attack $(ARGS)

bench: ## benchmarks
	$(GO) test -run '^$$' -bench . -benchmem ./...

bench-pair: build ## compare with the revision OLD, a cell of each on this machine, in pairs (ARGS='-only write64': see docs/benchmarks.md)
	cd internal/tools && $(GO) build -o ../../.cache/benchpair ./benchpair
	@.cache/benchpair -old '$(OLD)' $(ARGS)

bench-zookeeper: build ## compare with ZooKeeper, three servers of each on this machine (ARGS='-only write64': see docs/benchmarks.md)
	cd internal/tools/zkbench && $(GO) build -o ../../../.cache/zkbench .
	@.cache/zkbench $(ARGS)

proto: ## generate the Go code of the .proto files
	cd internal/tools && $(GO) run ./protogen ../.. $(PROTOS)

fuzz: ## fuzz every decoder (FOR=60s says how long for each, ONLY=pattern which)
	@GO=$(GO) sh internal/tools/fuzz.sh $(FOR) $(ONLY)

slow-link: ## large writes in a cell whose replicas have links of 12 Mbit/s, and of 1 Mbit/s with 300 ms one way
	LOCKD_SLOW=1 $(GO) test -count=1 -timeout 20m -run '^TestLargeWritesOnSlowLinks$$' -v ./internal/e2e

watch-count: ## 100,000 creations and deletions by eight writers; four watchers are told each of them
	LOCKD_LONG=1 $(GO) test -count=1 -timeout 20m -run '^TestCountingWatchers$$|^TestFrozenWatcher$$' -v ./internal/e2e

soak: ## the long tier: a real cell under load and kills for ten minutes, as long of simulator, every fuzz target
	LOCKD_SOAK=10m $(GO) test -count=1 -timeout 30m -run '^TestSoak' -v ./internal/e2e
	$(MAKE) sim FOR=10m
	$(MAKE) fuzz FOR=2m
