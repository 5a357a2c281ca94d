# All there is to run, in the order in which people need it. Each target installs what it needs and is missing; make
# test needs redis-server only.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
MISSPELL := github.com/golangci/misspell/cmd/misspell@v0.8.0
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.9.0
GORELEASER := github.com/goreleaser/goreleaser/v2@v2.16.0
APIDIFF := v0.0.0-20261014143641-f0251eb4aa3e
HELM := v3.22.0
BENCHSTAT := golang.org/x/perf/cmd/benchstat@v0.0.0-20260908200009-22c9c6c9d4da
FUZZTIME ?= 1m
TORTURE ?= 10m
JOBTORTURE ?= 2m
SOAK ?= 3m
STREAMS ?= 10000
SEQUENCES ?= 5m
RUNS ?= 6
# A guard against hanging, for each package: with the race detector and others at work the slowest takes ten minutes.
TIMEOUT ?= 25m

# Binaries of tests and examples need no revision stamped in, and asking git for it
# fails in a checkout of another user.
export GOFLAGS += -buildvcs=false

CACHE := $(CURDIR)/.cache
BACKENDS := $(CACHE)/backends.tsv
# ./... ends where another module begins, hence a list of them: what users who want one
# thing only need not require, and the benchmarks.
MODULES := $(patsubst %/,%,$(sort $(dir $(wildcard go.mod */go.mod */*/go.mod))))
NESTED := $(filter-out .,$(MODULES))
# What others import, as CONTRIBUTING.md says.
PUBLISHED := . joblock/otelobserver joblock/promobserver outbox server server/compat
# What a release tags: in addition the command, for go install.
RELEASED := $(PUBLISHED) cmd/joblock
# What talks to a server, and the servers in addition to the system's redis-server.
MATRIX := ./internal/redistest ./joblock/redisstore ./internal/e2e ./worker ./handoff
SERVERS ?= redis-8 valkey-9
# Tests make much garbage, and the machines have memory: with fewer collections they take a seventh less of the processor.
RACE := env GOGC=400 CGO_ENABLED=1 TIMEOUT=$(TIMEOUT) $(CURDIR)/.ci/race.sh
# The packages that take longest start first and the others fill the gaps: most of these tests wait for servers.
LONGEST := ./joblock/redisstore ./internal/e2e ./worker ./scheduler ./internal/torture

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: test
test: ## every promise once, on one redis-server: about a minute, up to five on a fresh machine
	@.ci/setup.sh redis
	@GOGC=400 .ci/shared.sh go test -vet=off -count=1 -timeout 10m -p 3 $(LONGEST) ./...

.PHONY: all
all: setup ## everything else: lint, races, servers, modules, a minute of torture; 20 minutes
	@mkdir -p $(CACHE) && rm -f $(BACKENDS)
	@JOBLOCK_BACKENDS=$(BACKENDS) .ci/together.sh "JOBLOCK_TORTURE=1m $(MAKE) servers" "$(MAKE) lint modules"
	@.ci/backends.sh $(BACKENDS)

.PHONY: lint
lint: docs ## formatting, go vet, staticcheck, tidy go.mod, in all modules; then docs
	@.ci/gofmt.sh
	go vet -tags servers $(MODULES:%=./%/...)
	go run $(STATICCHECK) -tags servers $(MODULES:%=./%/...)
	@.ci/tidy.sh $(MODULES)

.PHONY: race
race: setup ## the tests of make test, with the race detector
	@.ci/shared.sh $(RACE) -p 3 $(LONGEST) ./...

.PHONY: servers
servers: setup ## all tests of the root with the race detector, then those that talk to a server on each of SERVERS
	@.ci/shared.sh $(RACE) -tags servers -p 3 $(LONGEST) ./...
	@$(MAKE) histories
	@$(MAKE) matrix

# The race detector makes these five times as long, so make servers runs only a few of them with it.
.PHONY: histories
histories: ## random histories of redisstore, against the stores' model and against other ways of making the same calls
	@go test -tags servers -vet=off -count=1 -run 'Model|AsTheScripts|LikeTheGeneralStages|AsTheGeneralOnes' ./joblock/redisstore

.PHONY: matrix
matrix: setup ## the tests that talk to a server, on SERVERS only (default those of make servers; also redis-8.0, valkey-8.0)
	@TIMEOUT=$(TIMEOUT) SERVERS="$(SERVERS)" .ci/matrix.sh $(MATRIX)

# All modules in one go, so that one's tests run while the other's wait. Some start many processes, each of which the race
# detector would have sleep for a second before it ends.
.PHONY: modules
modules: setup ## the tests of the other modules: server, command line, pages in a browser, observers, bench
	@JOBLOCK_BACKENDS= GORACE=atexit_sleep_ms=0 $(RACE) -tags servers $(NESTED:%=./%/...)

.PHONY: docs
docs: ## check links, anchors, spelling and code of all pages
	go test -count=1 ./internal/readme
	@MISSPELL=$(MISSPELL) .ci/spelling.sh

.PHONY: quickstart
quickstart: ## run the smallest example; it needs no Redis
	go run ./examples/quickstart

.PHONY: observed
observed: ## run an application, workers, cron nodes and a lock server to look at; it needs no Redis
	go run -C examples/observed .

.PHONY: install
install: ## build the command joblock into the Go bin directory
	go -C cmd/joblock install .

.PHONY: torture
torture: export JOBLOCK_SERVER := $(SERVER:%=$(CACHE)/servers/%)
torture: setup ## locks for TORTURE (default 10m; single, Sentinel, Cluster), then jobs for JOBTORTURE (2m), while networks break and processes are killed; with SERVER=redis-8 on that server
	@test -z "$(SERVER)" || .ci/servers.sh $(SERVER)
	JOBLOCK_TORTURE=$(TORTURE) go test -tags servers -v -count=1 -timeout 0 ./internal/torture
	JOBLOCK_JOBTORTURE=$(JOBTORTURE) CGO_ENABLED=1 go test -tags servers -race -count=1 -timeout 0 -v -run TestJobsSurviveKilledWorkers ./internal/e2e

.PHONY: soak
soak: setup ## thousands of locks, waiters and jobs at full speed for SOAK (default 3m); nothing may grow or be left
	JOBLOCK_SOAK=$(SOAK) go test -tags servers -v -count=1 -timeout 0 ./internal/soak

.PHONY: sequences
sequences: setup ## 20,000 jobs in sequences for each minute of SEQUENCES (default 5m), while workers are killed; by a ledger outside of Redis
	JOBLOCK_SEQUENCES=$(SEQUENCES) go test -tags servers -v -count=1 -timeout 0 -run TestSequencesSurviveKilledWorkers ./internal/e2e

.PHONY: server-runs
server-runs: setup ## the lock server: STREAMS (default 10,000) streams and their drain, two replicas under faults for TORTURE, each fuzz target of the module for 5m
	cd server && JOBLOCK_STREAMS=$(STREAMS) go test -tags servers -v -count=1 -timeout 0 -run 'TestManyStreams|TestKilledServer' .
	cd server && JOBLOCK_TORTURE=$(TORTURE) go test -tags servers -v -count=1 -timeout 0 -run 'TestReplicasUnderFaults|TestLedgerFindsBrokenRules' .
	cd server && go test -tags servers -run '^$$' -fuzz '^FuzzServer$$' -fuzztime 5m .
	cd server && go test -tags servers -run '^$$' -bench Pair -benchtime 20000x .

.PHONY: kills
kills: setup ## processes that enqueue, work and operate are killed for KILLS (default 2m), for each control in turn; by a ledger outside of Redis
	JOBLOCK_KILLS=$(or $(KILLS),2m) JOBLOCK_CHAINS=$(or $(KILLS),2m) go test -tags servers -count=1 -timeout 0 -v -run 'KilledProcesses|ChainsSurvive' ./internal/e2e

.PHONY: mutants
mutants: setup ## break rules of the locks one by one; the torture must find each of them out
	@.ci/servers.sh redis-8
	go run ./internal/torture/mutants

.PHONY: faults
faults: setup ## run the test of every row of the tables of faults and of "joblock run", and print what became of each
	@.ci/faults.sh joblock/FAULTS.md
	@.ci/faults.sh cmd/joblock/RUN.md
	@.ci/faults.sh server/FAULTS.md
	@.ci/faults.sh outbox/FAULTS.md

.PHONY: fuzz
fuzz: ## run each fuzz target for FUZZTIME (default 1m)
	@FUZZTIME=$(FUZZTIME) .ci/fuzz.sh

.PHONY: zones
zones: ## ticks of every kind of spec, and of random specs, in every time zone until 2100, held against the clock on the wall; some minutes
	JOBLOCK_ZONES=1 go test -v -count=1 -timeout 60m -run Until2100 ./scheduler/spec | grep -v -e '^=== ' -e '^ *--- PASS'

.PHONY: alerts
alerts: setup ## make each alert fire in a real Prometheus, by its cause, on real servers; some minutes
	cd examples/observed && JOBLOCK_ALERTS=1 go test -tags servers -v -count=1 -timeout 30m -parallel 4 -run TestEveryAlertFires . | grep -v '^=== '

.PHONY: cover
cover: setup ## tests with coverage, of each package by all tests; total and report file
	@mkdir -p $(CACHE)
	CGO_ENABLED=1 go test -tags servers -race -count=1 -timeout $(TIMEOUT) -coverpkg=./joblock/...,./handoff/...,./worker/...,./scheduler/... \
		-coverprofile=$(CACHE)/cover.out ./...
	@go tool cover -func=$(CACHE)/cover.out | tail -n 1
	@go tool cover -html=$(CACHE)/cover.out -o $(CACHE)/cover.html && echo "report: .cache/cover.html"

.PHONY: bench
bench: setup ## compare with other lock libraries and with asynq alone, RUNS times (default 6): benchstat's tables, and files in bench/results; 4 minutes a run
	@cd bench && for run in $$(seq $(RUNS)); do go test -tags servers -run '^$$' -bench . -timeout 0 .; done | tee results/results.txt
	@cd bench && go run ./plot < results/results.txt > results/handover.svg
	@stat() { go run $(BENCHSTAT) -filter ".name:$$1" -col "$$2" bench/results/results.txt; }; \
		stat Uncontended '/lib@(joblock floor redislock redsync rueidislock)'; \
		stat Handover '/lib@(joblock publish redislock redsync rueidislock)'; \
		stat Enqueue '/way@(asynq lock many)'; \
		stat Jobs '/way@(asynq scripts lock sequence)'; \
		stat Sequence '/waiting@(1 10 10000 asynq)'; \
		stat Cluster /masters@num

.PHONY: microbench
microbench: setup ## run the packages' own Go benchmarks
	@packages=$$(.ci/having.sh Benchmark); test -n "$$packages" || { echo "no benchmarks found" >&2; exit 1; }; \
		go test -tags servers -run '^$$' -bench . -benchtime 100ms -benchmem $$packages

.PHONY: picture
picture: ## redraw the pictures in docs from their sources; needs dot, of Graphviz
	@for text in docs/*.dot; do \
		svg=$${text%.dot}.svg; \
		dot -Tsvg $$text -o $$svg; \
		echo "<!-- drawn from a text with SHA-256 $$(sha256sum $$text | cut -d' ' -f1) -->" >> $$svg; \
	done

.PHONY: api
api: ## what has changed for those who import the modules since the last tag, or TAG
	@APIDIFF=$(APIDIFF) .ci/apidiff.sh "$(PUBLISHED)" $(TAG)

.PHONY: licences
licences: ## the licences of all that comes into a program with the published modules and the command
	@.ci/licences.sh $(RELEASED)

.PHONY: vuln
vuln: ## known vulnerabilities that the published modules and the command reach; needs a network
	@for module in $(RELEASED); do \
		echo "== govulncheck in $$module"; \
		(cd $$module && go run $(GOVULNCHECK) ./...); \
	done

.PHONY: release-check
release-check: ## is .goreleaser.yaml right, and does the command build for each system?
	go run $(GORELEASER) check
	@for system in linux darwin windows; do CGO_ENABLED=0 GOOS=$$system go -C cmd/joblock build -o /dev/null . || exit 1; done

.PHONY: release
release: ## tag all modules as VERSION=v0.1.0, try them as a user would, and push the tags to REMOTE, if it is set
	@.ci/release.sh "$(VERSION)" "$(REMOTE)" $(RELEASED)

.PHONY: chart
chart: ## check the Helm chart: lint, what it makes, and the schema of its values
	@HELM=$(HELM) .ci/chart.sh

.PHONY: image
image: ## make an image of the command joblock and nothing else; needs docker
	rm -rf $(CACHE)/image && mkdir -p $(CACHE)/image/deploy $(CACHE)/image/linux/$$(go env GOARCH)
	CGO_ENABLED=0 GOOS=linux go -C cmd/joblock build -trimpath -tags timetzdata -ldflags '-s -w' \
		-o $(CACHE)/image/linux/$$(go env GOARCH)/joblock .
	cp /etc/ssl/certs/ca-certificates.crt $(CACHE)/image/deploy/
	docker buildx build --platform linux/$$(go env GOARCH) --load -f deploy/Dockerfile -t joblock $(CACHE)/image

.PHONY: debian-servers
debian-servers: ## bring the servers of make servers into .cache/servers, from Debian
	@.ci/servers.sh

.PHONY: setup
setup: ## install what the tests need and is missing: redis-server, a C compiler, a browser, promtool, curl, databases
	@.ci/setup.sh
