# `make help` lists the targets. PYTHON chooses the interpreter: make PYTHON=python3.12 test

PYTHON ?= python3
export TORCHES HARNESS
unexport PYTHONDONTWRITEBYTECODE  # as images set it: each of some thousand programs of tests would compile ours again
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO := $(VENV)/.demo
HOROVOD := $(VENV)/.horovod
ECOSYSTEM := .venv-ecosystem

comma := ,
PIP := python -m pip install -q --disable-pip-version-check

# $(call debian,PROGRAMS,PACKAGES,TESTS): as root on Debian, install the packages if a program is missing
debian = @missing=; for program in $(1); do command -v $$program >/dev/null || missing=$$program; done; \
	test -z "$$missing" || test "$$(id -u)" != 0 || ! command -v apt-get >/dev/null || { \
	apt-get update -q && apt-get -o DPkg::Lock::Timeout=120 install -q -y --no-install-recommends $(2); } >&2 || \
	echo '$(2) could not be installed: $(3) are skipped' >&2

# $(call unpacked,PROGRAM,PACKAGE,TESTS): on Debian, unpack a missing program into .cache/debian; installing its package
# would start a daemon
UNPACKED := .cache/debian
unpacked = @PATH=/usr/local/bin:/usr/bin command -v $(1) >/dev/null || test -x $(UNPACKED)/usr/bin/$(1) || ! command -v apt-get >/dev/null || { \
	mkdir -p $(UNPACKED) && cd $(UNPACKED) && \
	{ apt-get download -q $(2) || { apt-get update -q && apt-get download -q $(2); }; } && \
	dpkg-deb --fsys-tarfile $(2)_*.deb | tar -x ./usr/bin/$(1) && rm $(2)_*.deb; } >&2 || \
	echo '$(2) could not be unpacked: $(3) are skipped' >&2

.DEFAULT_GOAL := help
.PHONY: help venv dist demo tools compiled test open-mpi test-mpi slurm test-slurm horovod test-horovod test-ecosystem test-launch test-long test-torch test-gpu test-cuda test-all ci fuzz compose-test lint mutants session bench site clean distclean

help:  ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

# $(call install,EXTRAS,WHAT,GROUPS): install the checkout with some extras and groups of pyproject.toml into .venv. Of pip's lines, large files and the last step are shown.
define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo 'hetrdzv needs Python 3.11 or newer, which $(PYTHON) is not: choose another one with make PYTHON=/path/to/python3' >&2; \
	  exit 1; }
	@test -x $(BIN)/pip || { echo 'creating $(VENV)' && $(PYTHON) -m venv $(VENV); }
	@echo 'installing $(2) into $(VENV): one to ten minutes, for torch most of all (200 MB for CPUs, some GB with CUDA)'
	@$(BIN)/$(PIP) 'pip>=25.1'  # Debian's has no --group
	@$(BIN)/python -m pip install --no-compile --progress-bar off --disable-pip-version-check -c constraints.txt -e '.[$(1)]' $(addprefix --group ,$(3)) | sed -unE \
	  -e 's/^ *(Downloading|Using cached) (.*\/)?([^ /]+ \([0-9]{2,}[.0-9]* MB\)|[^ /]+ \([.0-9]+ GB\)).*/  \3/p' \
	  -e 's/^Processing .*\/(torch-[^/]+\.whl)( .*)?$$/  \1/p' \
	  -e 's/^Installing collected packages: .*/  unpacking/p'
	@echo '  compiling'  # only what programs import: pip would compile eight times as much
	@$(BIN)/python -W ignore -c 'import hetagent.cli.assembly, hetrdzv.api.app, sklearn.datasets, torch._dynamo, torch.distributed.run'
	@touch $@
endef

venv: $(STAMP)  ## install everything into .venv (other targets do this when needed)

$(STAMP) $(DEMO): SHELL := /bin/bash
$(STAMP) $(DEMO): .SHELLFLAGS := -o pipefail -c

$(STAMP): pyproject.toml constraints.txt
	$(call install,agent,hetrdzv$(comma) torch and the tools for tests,examples dev)
	@touch $(DEMO)

$(DEMO): pyproject.toml constraints.txt
	$(call install,agent,hetrdzv$(comma) torch and scikit-learn,examples)

demo: $(DEMO)  ## train on uneven nodes on this machine, and lose one on the way (installs no more than it needs)
	@$(BIN)/python examples/digits/demo.py

tools:  ## install what some tests need, on Debian and partly as root (without it they are skipped)
	$(call debian,ip nft docker-compose systemd-analyze,iproute2 nftables docker-compose systemd,tests with several hosts or of deploy/)
	$(call debian,chromium,chromium fonts-dejavu-core,tests of the dashboard in a browser)
	$(call unpacked,etcd,etcd-server,tests on etcd 3.4)
	$(call unpacked,promtool,prometheus,tests of the alerts)

# Run one more test file at a time than there are cores, since many tests wait.
AT_A_TIME := $(shell cores=$$(nproc); echo $$((cores < 8 ? cores + 1 : 8)))

compiled: $(STAMP)  # in .ci/run beside lint, which takes one core; without it each process of `make test` compiles all tests
	@$(BIN)/python -m pytest --collect-only -qq >/dev/null || true  # make test says what is wrong

test: $(STAMP) tools  ## run the tests
	HET_TEST_PART='$(PART)' $(BIN)/python -m pytest -n $(AT_A_TIME) --dist loadfile --no-loadscope-reorder

open-mpi: $(STAMP)  ## install Open MPI, as root on Debian, and mpi4py into .venv
	$(call debian,mpirun orted,openmpi-bin,its tests)
	@$(BIN)/python -c 'import mpi4py' 2>/dev/null || $(BIN)/$(PIP) -c constraints.txt --group mpi

test-mpi: open-mpi  ## run jobs with Open MPI on uneven nodes (six minutes)
	HET_TEST_ALL=1 $(BIN)/python -m pytest tests/mpi

slurm: $(STAMP)  ## install Slurm, as root on Debian
	$(call debian,slurmctld munged,slurm-wlm munge,its tests)

test-slurm: slurm  ## run jobs on a Slurm of two uneven nodes on this machine (four minutes)
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
	$(ECOSYSTEM)/bin/$(PIP) 'pip>=25.1'
	$(ECOSYSTEM)/bin/$(PIP) -c constraints.txt -e '.[agent]' --group ecosystem
	@touch $@

test-ecosystem: $(STAMP) $(ECOSYSTEM)/.installed  ## run Lightning, Accelerate, Transformers, DeepSpeed and Ray on uneven nodes (more than ten minutes)
	HET_TEST_ALL=1 $(BIN)/python -m pytest tests/ecosystem

test-launch: $(HOROVOD) open-mpi  ## run every command of docs/launch.md, and the examples of each launch style
	HET_TEST_ALL=1 $(BIN)/python -m pytest tests/e2e/test_launch_docs.py tests/e2e/test_launch_styles.py

test-long: $(STAMP) tools  ## run the tests of networks, faults, guides, torchrun and launch styles of which .ci/run runs a part each time, or with PART=3/96 that part, with Open MPI, Slurm and Horovod
	HET_TEST_ALL=1 HET_TEST_PART='$(PART)' SIM_FROM=$(or $(SIM_FROM),$(shell date +%s%3N)) $(BIN)/python -m pytest -m 'long$(if $(PART),, and not needs)'

test-torch: $(STAMP)  ## test the agent with the oldest torch, the newest and two in between, each in .cache/torch or in TORCHES (hours; docs/torch.md)
	$(BIN)/python -m tests.torches

TORCH ?= $(patsubst torch==%,%,$(filter torch==%,$(shell cat constraints.txt)))
GPU := .cache/gpu/$(TORCH)$(if $(PIP_INDEX_URL),-$(notdir $(PIP_INDEX_URL)))
TORCHS := torch|triton|sympy|mpmath|networkx|jinja2|fsspec|filelock|typing_extensions

$(GPU)/.installed: pyproject.toml constraints.txt
	@echo 'installing torch $(TORCH) into $(GPU): some minutes, 5 to 7 GB with CUDA'
	@test -x $(GPU)/bin/pip || $(PYTHON) -m venv $(GPU)
	@$(GPU)/bin/python -m pip install -q --disable-pip-version-check torch==$(TORCH) numpy
	@grep -viE '^($(TORCHS))==' constraints.txt > $(GPU)/constraints.txt  # what torch has brought stays
	@PIP_INDEX_URL= $(GPU)/bin/python -m pip install -q --disable-pip-version-check -c $(GPU)/constraints.txt -e '.[agent]' pytest pytest-asyncio pytest-timeout
	@touch $@

test-gpu: $(GPU)/.installed  ## check on a node with GPUs all that is said about them (ten minutes; TORCH=2.15.0 for another release)
	HET_TEST_ALL=1 $(GPU)/bin/python -m pytest tests/gpu tests/agent/snapshots/test_accelerator.py

CUDA := .cache/cuda/$(TORCH)

$(CUDA)/.installed: pyproject.toml constraints.txt
	@echo 'installing the CUDA build of torch $(TORCH) into $(CUDA): some minutes, 5 to 7 GB'
	@test -x $(CUDA)/bin/pip || $(PYTHON) -m venv $(CUDA)
	@$(CUDA)/bin/python -m pip install -q --disable-pip-version-check 'torch===$(TORCH)' numpy  # === takes no build for CPUs
	@grep -viE '^($(TORCHS))==' constraints.txt > $(CUDA)/constraints.txt
	@$(CUDA)/bin/python -m pip install -q --disable-pip-version-check -c $(CUDA)/constraints.txt -e '.[agent]' pytest pytest-asyncio pytest-timeout
	@touch $@

test-cuda: $(CUDA)/.installed  ## ask torch's CUDA build what the agent asks it, without a GPU (minutes, and 5 to 7 GB; TORCH=2.15.0 for another release)
	HET_TEST_ALL=1 $(CUDA)/bin/python -m pytest tests/cuda tests/agent/monitor tests/agent/worker/test_torch_server.py

test-all: ci dist test-long test-horovod test-mpi test-slurm test-ecosystem test-launch  ## run .ci/run and all tests that take minutes to set up (an hour)

ci:
	.ci/run

dist: $(STAMP)  ## build wheel and sdist into dist/, check them, and try them outside the checkout, without torch and with it (three minutes)
	$(BIN)/python -m tests.dist

fuzz: $(STAMP)  ## fuzz the API and the stored records for longer, with new inputs each time (ten minutes)
	HET_FUZZ=big $(BIN)/python -m pytest --timeout 1800 tests/fuzz

compose-test: $(STAMP)  ## start docker-compose.yml and break parts of it while it trains (ten minutes; see docs/deploy.md)
	$(BIN)/python deploy/docker/try.py

lint: $(STAMP)  ## check format, style and types
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

mutants: $(STAMP)  ## show which small changes of a module of the core no test notices: MODULE=selection/best_set (minutes; TESTS=... for some tests only)
	$(BIN)/$(PIP) -c constraints.txt --group mutants
	$(BIN)/python -m tests.mutants $(MODULE) $(TESTS)

session: $(DEMO)  ## record docs/session.svg, the picture in README (a minute, on an idle machine)
	$(BIN)/python docs/session.py

bench: $(STAMP)  ## measure what a server bears (docs/performance.md), recovery from faults, acknowledged writes, failover and uneven batches (two hours, on an idle machine)
	$(BIN)/python -m benchmarks.idle
	$(BIN)/python -m benchmarks.rendezvous
	$(BIN)/python -m benchmarks.rendezvous --store memory --nodes 128,1000
	$(BIN)/python -m benchmarks.rendezvous --store etcd --nodes 128,1000
	$(BIN)/python -m benchmarks.storm
	$(BIN)/python -m benchmarks.hold
	$(BIN)/python -m benchmarks.hostile
	$(BIN)/python -m benchmarks.faults
	$(BIN)/python -m benchmarks.restarts
	$(BIN)/python -m benchmarks.warm
	$(BIN)/python -m benchmarks.viewers
	$(BIN)/python -m benchmarks.failover
	$(BIN)/python -m benchmarks.writes etcd
	$(BIN)/python -m benchmarks.writes sqlite
	$(BIN)/python -m benchmarks.uneven
	$(BIN)/python -m benchmarks.snapshots
	$(BIN)/python -m benchmarks.snapshot_costs

SITE := .venv-site

$(SITE)/.installed: pyproject.toml
	@test -x $(SITE)/bin/pip || $(PYTHON) -m venv $(SITE)
	@$(SITE)/bin/$(PIP) 'pip>=25.1'
	@$(SITE)/bin/$(PIP) --group site
	@touch $@

site: $(SITE)/.installed  ## make a site of docs/, with search, in build/site (a minute the first time)
	$(SITE)/bin/mkdocs build --strict --quiet
	@echo build/site/index.html

clean:  ## remove caches and build outputs
	rm -rf build dist .hypothesis .pytest_cache .mypy_cache .ruff_cache
	find . -path ./$(VENV) -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +

distclean: clean  ## remove .venv and what was built for it, too
	rm -rf $(VENV) $(ECOSYSTEM) $(SITE) .cache
