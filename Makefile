# The two commands of a newcomer: `make bench` measures the delivery modes on this machine, `make test` passes the tests.
# Each installs what is missing. `make help` lists the rest.

CARGO ?= cargo
# Options of `quell bench`: make bench BENCH="--quick"
BENCH ?=
# How long `make fuzz` runs each target.
SECONDS ?= 60
# The lab needs root; everything is built as whoever calls.
SUDO := $(shell [ "$$(id -u)" = 0 ] || command -v sudo)

.PHONY: help bench test test-vm test-servers lint build bench-generator bench-servers fuzz clean-lab

help: ## this list
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 18

# Where there is no memcached to be had, or the machine cannot run the lab for another reason, quell says so and asks the model.
bench: ## measure which delivery mode wins on this machine (about two minutes after the build; BENCH="--quick" for less)
	@tools/install-missing
	@tools/install-missing memcached || echo "going on without memcached"
	@$(CARGO) build --release --locked --quiet -p quell
	@$(SUDO) target/release/quell bench $(BENCH)

test: ## every test; the last line counts those that passed and those that were skipped, by reason
	@tools/install-missing memcached
	@tools/count-tests $(CARGO) test --locked --workspace --no-fail-fast

# Not part of CI: emulation takes both of its CPUs for minutes beside 10 of the 15 that CI has, and the kernels are 250 MB
# from a mirror. The program is optimised: the guests run it.
test-vm: ## the tests on Debian's kernels under emulation (fetches them once; no root but for installing QEMU)
	@tools/install-missing qemu-system-x86_64
	$(CARGO) test --release --locked -p quell --test vm --test vm_kernels --no-run
	@for kernel in 6.1 6.12 7.3 7.3-full; do \
		target/release/quell vm list --json | grep -q "\"$$kernel\"" || target/release/quell vm get $$kernel || exit 1; \
	done
	$(CARGO) test --release --locked -p quell-vm
	$(CARGO) test --release --locked -p quell --test vm --test vm_kernels -- --test-threads=1 --nocapture

# Not part of CI: packages, a Go toolchain and tokio to have, and ten minutes of servers under load. `make test` tries those
# that are installed, and kills six times instead of 200.
test-servers: ## servers from packages under a delivery mode, traced, attached, launched, and killed 200 times (root)
	@tools/install-missing memcached redis-server redis-benchmark nginx haproxy wrk go strace
	QUELL_TEST_SERVERS=all $(CARGO) test --locked -p quell --test servers -- --nocapture

bench-servers: ## the figures of docs/servers.md for this machine (root; 25 minutes)
	@tools/install-missing memcached redis-server redis-benchmark nginx haproxy wrk go
	$(CARGO) bench --locked -p quell --bench servers

lint: ## formatting, clippy, documentation: no warning is let through
	@tools/install-missing
	$(CARGO) fmt --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --no-deps --quiet

build: ## the program, optimised: target/release/quell
	@tools/install-missing
	$(CARGO) build --release --locked -p quell

bench-generator: ## what the generator can do, beside a blind one and one of the published kind (root; about two minutes)
	$(CARGO) bench --locked -p quell-load --bench generator_limit

# In CI the ordinary tests replay the kept corpus instead: an instrumented build and a minute a target take 2 CPUs
# longer than the quarter of an hour that CI has.
fuzz: export RUSTC_BOOTSTRAP = 1
fuzz: ## every parser under its fuzz target, SECONDS=60 each; needs cargo-fuzz; what is new goes to fuzz/found
	@command -v cargo-fuzz >/dev/null || { echo "cargo-fuzz is missing: cargo install cargo-fuzz"; exit 1; }
	@for target in $$($(CARGO) fuzz list); do \
		mkdir -p fuzz/found/$$target; \
		$(CARGO) fuzz run $$target fuzz/found/$$target fuzz/corpus/$$target -- \
			-max_total_time=$(SECONDS) -max_len=8192 -timeout=10 || exit 1; \
	done

clean-lab: ## remove what a killed run left behind
	@$(SUDO) target/release/quell lab clean
