# The front door: people and CI call the same targets. `make` or `make help` lists them.
# ARGS are passed on, as in:  make demo ARGS='--events 20000 --seed 7 --json'
#
# Standard output belongs to what is run (with ARGS=--json its last line is one JSON object); progress,
# builds included, goes to standard error.

.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
# rustup's place, for shells that do not have it
export PATH := $(PATH):$(HOME)/.cargo/bin
CARGO_TARGET_DIR ?= target
ARGS ?=

.PHONY: help
help: ## lists these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## the whole chain in one command, with processes killed on the way; needs no service (ARGS: tracium demo --help)
	@dev/prereqs demo >&2
	@cargo build --release --locked -p tracium-cli >&2
	@$(CARGO_TARGET_DIR)/release/tracium demo $(ARGS)

.PHONY: flights
flights: ## 336,776 real flights through the real services (ARGS=--json prints the figures)
	@dev/flights $(ARGS)

.PHONY: test
test: ## fetches, builds, lints, starts the services, runs all tests; tells how long each took (ARGS: for cargo test)
	@dev/test $(ARGS)

.PHONY: lint
lint: ## format, clippy, rustdoc, dependency direction, scripts
	@dev/lint

.PHONY: verify
verify: test ## test, then whole runs judged from outside: demo, flights, Java interop, dependencies, three brokers
	@dev/verify

.PHONY: bench
bench: ## relay and consumer: events/s, CPU per event, peak memory (ARGS: default --events 100000 --json)
	@dev/bench $(ARGS)

.PHONY: up
up: ## installs and starts PostgreSQL, Redis, Kafka, Elasticsearch, ClickHouse on loopback (ARGS: only these; dev/stack help)
	@dev/prereqs all
	@dev/stack up $(ARGS)
	@echo "up; for tests and tools:  eval \"\$$(dev/stack env)\""

.PHONY: down
down: ## stops them; their data stays (dev/stack reset deletes it)
	@dev/stack down $(ARGS)

.PHONY: clean
clean: ## deletes what was built
	@cargo clean
