# `make help` lists what there is to make. PYTHON chooses the interpreter: make PYTHON=python3.12 test

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
HOROVOD := $(VENV)/.horovod
ECOSYSTEM := .venv-ecosystem

# $(call debian,PROGRAMS,PACKAGES,TESTS): as root on Debian, install packages unless the programs are there
debian = @missing=; for program in $(1); do command -v $$program >/dev/null || missing=$$program; done; \
	test -z "$$missing" || test "$$(id -u)" != 0 || ! command -v apt-get >/dev/null || { \
	apt-get update -q && apt-get -o DPkg::Lock::Timeout=120 install -q -y --no-install-recommends $(2); } >&2 || \
	echo '$(2) could not be installed: $(3) are skipped' >&2

.DEFAULT_GOAL := help
.PHONY: help venv demo tools test test-mpi test-slurm horovod test-horovod test-ecosystem test-launch test-all fuzz compose-test lint bench clean distclean

help:  ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

venv: $(STAMP)  ## install everything into .venv (the other targets do it by themselves)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo 'hetrdzv needs Python 3.11 or newer, and $(PYTHON) is not: name another one with make PYTHON=/path/to/python3' >&2; \
	  exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[agent,etcd,dev]'
	@touch $@

demo: $(STAMP)  ## train on unlike nodes on this machine, and lose one on the way
	$(BIN)/python examples/digits/demo.py

tools:  ## install what tests with several hosts need (as root, on Debian; the tests are skipped without it)
	$(call debian,ip nft,iproute2 nftables,tests with several hosts)

test: $(STAMP) tools  ## run the tests
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test-mpi: $(STAMP)  ## run jobs with Open MPI on uneven nodes, installed as root on Debian (six minutes)
	$(call debian,mpirun orted,openmpi-bin,its tests)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[mpi]'
	HET_TEST_ALL=1 $(BIN)/python -m pytest tests/mpi

test-slurm: $(STAMP)  ## run jobs on a Slurm of two uneven nodes on this machine, installed as root on Debian (four minutes)
	$(call debian,slurmctld munged,slurm-wlm munge,its tests)
	HET_TEST_ALL=1 $(BIN)/python -m pytest tests/slurm

horovod: $(HOROVOD)  ## build Horovod with gloo (three minutes, once; kept in .cache/wheels) and install it into .venv

$(HOROVOD): $(STAMP) deploy/horovod/build.sh
	wheel=$$(deploy/horovod/build.sh $(BIN)/python .cache/wheels) && \
	  $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt "$$wheel"
	@touch $@

test-horovod: $(HOROVOD)  ## run jobs with Horovod on uneven nodes (a minute, and the build)
	HET_TEST_ALL=1 $(BIN)/python -m pytest tests/horovod

$(ECOSYSTEM)/.installed: pyproject.toml constraints.txt | $(STAMP)
	@test -x $(ECOSYSTEM)/bin/pip || $(PYTHON) -m venv $(ECOSYSTEM)
	$(ECOSYSTEM)/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[agent,ecosystem]'
	@touch $@

test-ecosystem: $(STAMP) $(ECOSYSTEM)/.installed  ## run Lightning Fabric, Accelerate, Transformers and FSDP on uneven nodes (four minutes)
	HET_TEST_ALL=1 $(BIN)/python -m pytest tests/ecosystem

test-launch: $(HOROVOD)  ## run every command of docs/launch.md, and what make test leaves out of examples and torchrun (six minutes; wants what test-mpi installs)
	HET_TEST_ALL=1 $(BIN)/python -m pytest tests/e2e/test_launch_docs.py tests/e2e/test_launch_styles.py tests/e2e/test_torchrun.py

test-all: $(STAMP) tools  ## run .ci/run and all tests that take minutes to set up, and write docs/test-all.md (half an hour)
	$(BIN)/python -m tests.everything

fuzz: $(STAMP)  ## ask the API and the records many more things than the tests do, others each time (ten minutes)
	HET_FUZZ=big $(BIN)/python -m pytest --timeout 1800 tests/fuzz

compose-test: $(STAMP)  ## start docker-compose.yml, break parts of it while it trains (ten minutes; see docs/deploy.md)
	$(BIN)/python deploy/docker/try.py

lint: $(STAMP)  ## check format, style and types
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

bench: $(STAMP)  ## measure rendezvous, recovery from faults, failover and retention (an hour, on an idle machine)
	$(BIN)/python -m benchmarks.rendezvous
	$(BIN)/python -m benchmarks.faults
	$(BIN)/python -m benchmarks.failover
	$(BIN)/python -m benchmarks.retention
	$(BIN)/python -m benchmarks.torchrun_plugin

clean:  ## remove caches and build outputs
	rm -rf build dist .hypothesis .pytest_cache .mypy_cache .ruff_cache
	find . -path ./$(VENV) -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +

distclean: clean  ## remove .venv and what was built for it, too
	rm -rf $(VENV) $(ECOSYSTEM) .cache
