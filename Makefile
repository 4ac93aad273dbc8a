# The two commands of a newcomer: `make bench` measures the delivery modes on this machine, `make test` passes the tests.
# Each installs what is missing. `make help` lists the rest.

CARGO ?= cargo
# Options of `quell bench`: make bench BENCH="--quick"
BENCH ?=
# Servers from packages that tests try, with their clients, and tools that tests use or compare answers with.
SERVERS := memcached redis-server redis-benchmark nginx haproxy wrk hey h2load dnsperf
# The servers that only test-servers and bench-servers try. Envoy is tried if it is installed: no distribution has it.
MORE_SERVERS := node unbound
TOOLS := go python3 ip ethtool strace valgrind setpriv cpio systemd-analyze script tmux ssh sshd prometheus promtool mandoc man zsh fish ansible-playbook ansible-lint
# How long `make fuzz` runs each target.
SECONDS ?= 60
# The lab needs root; everything is built as whoever calls.
SUDO := $(shell [ "$$(id -u)" = 0 ] || command -v sudo)

.PHONY: help package check-packages release-check check-aarch64 mpi test-mpi nightly install-for-tests bpf bench test test-stressed test-vm test-servers test-report lint build bench-generator bench-closed-loop bench-servers fuzz clean-lab

help: ## list the targets
	@grep -E '^[a-z0-9-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 18

# Where there is no memcached to be had, or the machine cannot run the lab for another reason, quell says so and asks the model.
bench: ## find the best delivery mode for this machine (about two minutes after the build; less with BENCH="--quick")
	@tools/install-missing
	@tools/install-missing memcached || echo "continuing without memcached"
	@$(CARGO) build --release --locked -p quell
	@$(SUDO) target/release/quell bench $(BENCH)

test: ## run all tests; the last line counts passed tests, and skipped ones by reason
	@tools/install-missing memcached
	@tools/count-tests $(CARGO) test --locked --workspace --no-fail-fast

test-stressed: ## run all tests with late timers and each CPU taken for a third of the time (tools/stress)
	@tools/install-missing memcached
	@$(CARGO) test --locked --workspace --no-run
	@tools/stress tools/count-tests $(CARGO) test --locked --workspace --no-fail-fast

install-for-tests: ## install servers and tools without which `make test` skips tests
	@tools/install-missing $(SERVERS) $(TOOLS)

# In `make nightly`, not in CI: emulation takes both CPUs for minutes, its figures are worth nothing on a host that is busy
# with other things, and the kernels are 250 MB from a mirror that may have newer ones today.
test-vm: ## run tests on Debian kernels under QEMU (fetched once; root only for installing QEMU)
	@tools/install-missing qemu-system-x86_64
	$(CARGO) test --release --locked -p quell --test all --no-run
	@for kernel in 6.1 6.12 7.3 7.3-full; do \
		target/release/quell vm list --json | grep -q "\"$$kernel\"" || target/release/quell vm get $$kernel || exit 1; \
	done
	$(CARGO) test --release --locked -p quell-vm
	$(CARGO) test --release --locked -p quell --test all -- vm:: vm_kernels:: --test-threads=1 --nocapture

# `make test`, and with it CI, tries the $(SERVERS) that are installed, builds none, and kills six times instead of 200.
test-servers: ## test packaged servers with a delivery mode: traced, attached, launched, killed 200 times (root)
	@tools/install-missing $(SERVERS) $(MORE_SERVERS) $(TOOLS)
	QUELL_TEST_SERVERS=all tools/count-tests $(CARGO) test --locked -p quell --test all servers:: -- --nocapture

# `make test` uses a Chromium that is installed, and has no axe-core.
test-report: ## look at reports in a browser: widths, schemes, accessibility (installs Chromium, fetches axe-core)
	@tools/install-missing chromium npm
	@npm install --silent --no-save --prefix target/axe axe-core
	QUELL_TEST_BROWSER=1 QUELL_AXE=$(CURDIR)/target/axe/node_modules/axe-core/axe.min.js \
		tools/count-tests $(CARGO) test --locked -p quell-report --test all browser::

# Open MPI, and libclang with the C headers, from which the bindings are generated. Neither `make test` nor `make bench`
# needs them: without its feature `mpi`, quell-mpi has no program.
mpi: ## build target/release/quell-mpi, which loads from many machines (needs Open MPI)
	@tools/install-missing mpicc mpirun libclang
	$(CARGO) build --release --locked -p quell-mpi --features mpi

test-mpi: ## check quell-mpi and test it on machines that are network namespaces (root)
	@tools/install-missing mpicc mpirun libclang ip tc ethtool memcached
	$(CARGO) clippy --locked -p quell-mpi --features mpi --all-targets -- -D warnings
	$(CARGO) build --locked -p quell
	@tools/count-tests $(CARGO) test --locked -p quell-mpi --features mpi --no-fail-fast

bench-servers: ## measure packaged servers with and without a delivery mode on this machine (root; an hour)
	@tools/install-missing $(SERVERS) $(MORE_SERVERS) go
	$(CARGO) bench --locked -p quell --bench servers

lint: ## check formatting, lock files, clippy, documentation and the compiled BPF programs; warnings are errors
	@tools/install-missing
	@if command -v clang-14 >/dev/null; then tools/build-bpf --check; else echo "no clang-14: the BPF object is not compared"; fi
	$(CARGO) fmt --check
	$(CARGO) metadata --locked --manifest-path fuzz/Cargo.toml --format-version 1 >/dev/null
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --no-deps --quiet

bpf: ## compile the BPF programs of quell-sampler; commit the result
	@tools/install-missing clang-14 llvm-strip-14 bpf_helpers.h
	tools/build-bpf

build: ## build target/release/quell
	@tools/install-missing
	$(CARGO) build --release --locked -p quell

bench-generator: ## compare the load generator with a sender that measures nothing (root; about two minutes)
	$(CARGO) bench --locked -p quell-load --bench generator_limit

bench-closed-loop: build ## measure a closed loop in each order of sending, against one memcached (root; about two minutes)
	$(CARGO) bench --locked -p quell-load --bench generator_limit -- closed-loop --quell $(CURDIR)/target/release/quell

fuzz: ## fuzz every parser for SECONDS=60 each; new inputs go to fuzz/found
	@tools/install-missing c++
	@tools/fuzz $(SECONDS)

nightly: ## tests that are too slow for CI or need a network: guests, 200 kills, published experiments, random owners of settings, packages, aarch64, ten minutes of each fuzz target
	$(MAKE) test-vm
	$(MAKE) test-servers
	$(MAKE) test-report
	$(CARGO) test --locked -p quell --test all bench_on_the_kernel:: -- --ignored
	PROPTEST_CASES=100000 $(CARGO) test --locked -p quell-change --lib owners_in_any_order
	QUELL_OWNER_SEQUENCES=300 $(CARGO) test --locked -p quell-host --test all owners_on_the_kernel::
	QUELL_COMMAND_SEQUENCES=60 $(CARGO) test --locked -p quell --test all attach_on_the_kernel::random_owners
	$(MAKE) check-aarch64
	$(MAKE) check-packages
	$(MAKE) fuzz SECONDS=600

package: ## build a deb, an rpm and a tarball into target/package (about six minutes)
	@tools/install-missing objdump
	@tools/package

check-packages: ## build the packages twice, compare and lint them, install and remove them in empty roots (root)
	@tools/install-missing objdump lintian rpmlint rpm mmdebstrap mandoc man
	@tools/check-packages

release-check: ## check the versions and the packages for a release, and print what is left for a person (root)
	@tools/install-missing objdump lintian rpmlint rpm mmdebstrap mandoc man
	@tools/release-check

check-aarch64: ## check all crates for aarch64 with the compiler of Debian testing (root; fetches 400 MB)
	@tools/install-missing mmdebstrap
	@tools/check-aarch64

clean-lab: ## remove leftovers of killed runs
	@$(SUDO) target/release/quell lab clean
