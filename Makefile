# Thin rules: what they do lives in scripts/. Everything a rule needs beyond cargo and python3 it fetches itself,
# once, into a cache outside the checkout (MUSTER_CACHE, else the user's cache directory).

SHELL := bash
.DEFAULT_GOAL := help
PREFIX ?= $(HOME)/.local

.PHONY: help build install image demo fmt check test test-full chaos bench test-queues kube-up kube-down

help: ## Show this list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build the release binary: target/release/muster.
	@scripts/build.sh

install: ## Install the release binary into PREFIX/bin (default: ~/.local/bin).
	@scripts/install.sh "$(PREFIX)"

image: ## Build the image of server and agents for clusters: target/image/muster-ARCH.tar; ARCH=arm64 for another.
	@scripts/image.sh "$(or $(ARCH),amd64)"

demo: ## Build, then train a real model on two tasks of this machine.
	@scripts/demo.sh

fmt: ## Format the Rust and Python sources.
	@scripts/fmt.sh

check: ## Formatting, lints, unit tests, architecture, generated files. Minutes.
	@scripts/check.sh

test: ## Everything: check, licences and bans, end-to-end tests, the demo. What CI runs.
	@scripts/test.sh

chaos: ## Random kills, freezes, restarts and damage under real jobs: RUNS of them, the first from SEED; KILLS=200 of the agent in arrays.
	@SEED="$(SEED)" RUNS="$(RUNS)" KILLS="$(KILLS)" scripts/chaos.sh

test-full: ## One of the matrices that take too long for `make test`: ONLY=frameworks.
	@scripts/test-full.sh "$(ONLY)"

bench: ## Measure the promised figures beside other tools, on an idle machine; ONLY=name for one. Writes bench/RESULTS.md.
	@ONLY="$(ONLY)" QUICK="$(QUICK)" scripts/bench.sh

test-queues: ## Gangs in the queues of a real Kueue and a real Volcano, which are built first, once. Minutes; as root.
	@MUSTER_TEST_KUEUE="$$(scripts/kube.sh queue kueue)" MUSTER_TEST_VOLCANO="$$(scripts/kube.sh queue volcano)" \
		cargo test -p muster-engine-kube --lib why_others_wait -- --ignored

kube-up: ## Start a Kubernetes of two nodes on this machine, and print how kubectl reaches it. As root.
	@scripts/kube.sh up

kube-down: ## End it, with everything on it.
	@scripts/kube.sh down
