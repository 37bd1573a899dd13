# Every chore has a target here; `make` alone lists them.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory
export PATH := $(PATH):$(HOME)/.cargo/bin

PROFILE ?= nats

.DEFAULT_GOAL := help
.PHONY: help setup demo up down quick test test-module test-examples verify bench profile model mutants attack fuzz bench-peers lint style features fmt audit ci

help: ## list what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install what tests and lint need from Debian's packages, if it is missing
	@.ci/setup all

demo: ## publish tasks before your eyes: make demo ARGS="--seconds 10"
	@.ci/setup compile
	@exec cargo run --quiet --locked -- demo $(ARGS)

up: ## start Redis, a broker and punctual in Docker: make up PROFILE=nats (kafka, rabbitmq, all)
	@.ci/compose up "$(PROFILE)"

down: ## stop and remove what `make up` started, with its data
	@.ci/compose down

quick: ## does a change hold? format, clippy, unit tests, laws: about a minute
	@.ci/setup all
	@.ci/quick

test: ## run all tests; the last line counts them
	@.ci/setup all
	@.ci/test

test-module: ## run the tests of one module: make test-module MODULE=engine (http, lua, sinks/kafka, ...)
	@.ci/module "$(MODULE)"

test-examples: ## run the recipes in Python and Node, Celery and a generated client; installs pinned clients from PyPI and npm
	@.ci/setup all
	@exec .ci/test-examples

verify: ## attack instances for ten minutes and judge what they publish: make verify ARGS="--sink kafka --seed 7 --seconds 600"
	@.ci/setup all
	@cargo build --quiet --locked --workspace --bins
	@exec "$${CARGO_TARGET_DIR:-target}/debug/punctual-lab" verify $(if $(ARGS),$(ARGS),--instances 4 --seconds 600 --pause 700ms)

bench: ## measure every budget three times and write lab/bench/README.md (ROUNDS, ROWS, OUT); one bench: make bench ARGS="lateness --sink kafka"
	@.ci/setup $(if $(ARGS),all,bench)
	@$(if $(ARGS),cargo build --quiet --release --locked --workspace --bins && exec "$${CARGO_TARGET_DIR:-target}/release/punctual-lab" bench $(ARGS),exec .ci/bench "$(ROUNDS)" '$(value ROWS)' "$(OUT)")

profile: ## whose code an instance spends its CPU time in: make profile ARGS="throughput-kafka throughput --sink kafka"
	@.ci/setup profile
	@CARGO_PROFILE_RELEASE_DEBUG=line-tables-only cargo build --quiet --release --locked --workspace --bins
	@exec node lab/bench/profile.mjs "$${CARGO_TARGET_DIR:-target}/release/punctual-lab" $(ARGS)

model: ## the model check, deeper: each plan again with one more event of each kind; at most STATES states (1000000) of each
	@.ci/setup compile
	@PUNCTUAL_MODEL_STATES="$(or $(STATES),1000000)" cargo test --quiet --locked --test tests timeline::model::the_laws_hold_deeper -- --ignored --nocapture

mutants: ## break each law in one line and check that a test fails: make mutants ARGS=04
	@.ci/setup all
	@exec .ci/mutants $(ARGS)

attack: ## attack an instance as one caller, and measure the effect on other callers: ten minutes
	@.ci/setup all
	@exec .ci/attack

fuzz: ## a minute of made-up input for each reader, and 10 000 requests of the OpenAPI document: make fuzz SEED=2 SECONDS=600
	@.ci/setup fuzz
	@SEED="$(SEED)" FUZZ_SECONDS="$(SECONDS)" exec .ci/fuzz

bench-peers: ## measure BullMQ, Asynq, NATS schedules and db-scheduler: make bench-peers ARGS="--tasks 20000 --rate 1000 --seconds 10"
	@.ci/setup peers
	@exec .ci/peers $(ARGS)

lint: style features ## rustfmt, clippy and luacheck, all without complaint
	cargo clippy --workspace --all-targets --features punctual/fault-points --locked -- -D warnings

style: setup ## rustfmt and luacheck
	cargo fmt --all -- --check
	luacheck -- lua/*.lua lua/parts/*.lua

# A program that embeds the library may switch off any feature.
features: setup ## clippy of the library without any of its features
	cargo clippy --no-default-features --lib --locked -- -D warnings

fmt: ## format the Rust code
	cargo fmt --all

audit: ## licences, advisories and banned crates (needs cargo-deny)
	@command -v cargo-deny >/dev/null || { echo "cargo-deny is missing: cargo install --locked cargo-deny" >&2; exit 2; }
	cargo deny --locked check

ci: ## what continuous integration runs
	@.ci/run
