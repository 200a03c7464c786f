# Two commands do everything on a fresh Debian or Ubuntu: `make run` and `make test`.
PYTHON ?= python3
VENV := .venv
# What pip installs for torch; options such as an index of CPU builds may stand here.
TORCH ?= torch
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
# worksteal: each process gets a row of whole modules, whose fixtures it makes once, and at the end takes tests from another.
FAST_TESTS = $(BIN)/python -m pytest --numprocesses=logical --maxprocesses=8 --dist=worksteal -m "not slurm and not train and not notebook and not browser"
RANK_TESTS = $(BIN)/python -m pytest --numprocesses=2 --dist=worksteal tests
# Mostly waits; each process has a sandbox of its own. The 1,024 ranks need the machine to themselves.
FULL_SIZE = tests/slurm/test_full_size.py
SLURM_TESTS = $(BIN)/python -m pytest --numprocesses=2 --dist=worksteal --timeout=600 tests/slurm --ignore=$(FULL_SIZE)

.PHONY: run test test-long style check bench format clean

run: $(VENV)/.run-ready ## train the tiny model on real text on this machine, and show the result
	$(BIN)/python -m hpctrain model=tiny parallelism=zero3 cluster=local

test: $(VENV)/.dev-ready ## set up everything, a sandbox Slurm, a browser and a compiler too, and pass the tests
	sh slurm/sandbox/install.sh
	PYTHON=$(BIN)/python sh tests/install_packages.sh
	$(FAST_TESTS)
	$(RANK_TESTS) -m "(train or notebook or browser) and not slurm and not long"
	$(SLURM_TESTS)
	$(BIN)/python -m pytest $(FULL_SIZE)

test-long: $(VENV)/.dev-ready ## further combinations of ranks, and those that train with states on NVMe
	PYTHON=$(BIN)/python sh tests/install_packages.sh
	$(BIN)/python -m tests.native_ops
	$(RANK_TESTS) -m long

style: $(VENV)/.dev-ready ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: style ## style, types and the fast tests
	$(FAST_TESTS)

bench: $(VENV)/.dev-ready ## the speed claims, side by side (minutes)
	$(BIN)/python tests/bench/cli_bench.py
	$(BIN)/python tests/bench/loop_bench.py
	$(PIP) --editable '.[bench]'
	$(BIN)/python tests/bench/ddp_bench.py
	$(BIN)/python -m tests.bench.loader_bench
	$(BIN)/python tests/bench/prepare_bench.py
	$(BIN)/python tests/bench/launch_bench.py
	$(BIN)/python tests/bench/frames_bench.py
	$(BIN)/python tests/bench/log_bench.py
	$(BIN)/python -m tests.bench.plan_bench
	$(BIN)/python -m tests.bench.search_bench
	$(BIN)/python tests/bench/plan_validation.py
	$(BIN)/python tests/bench/status_bench.py

format: $(VENV)/.dev-ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "hpctrain needs Python 3.11 or newer, %s is %s; make PYTHON=... names another" % (sys.executable, sys.version.split()[0]))'
	$(PYTHON) -m venv $(VENV)

# torch first, from the constraints file, so that no other package's request picks another build of it.
$(VENV)/.torch-ready: constraints.txt | $(BIN)/pip
	$(PIP) $(TORCH)
	touch $@

$(VENV)/.run-ready: pyproject.toml $(VENV)/.torch-ready
	$(PIP) --editable '.[train,analysis,data]'
	touch $@

$(VENV)/.dev-ready: pyproject.toml $(VENV)/.torch-ready
	$(PIP) --editable '.[dev]'
	touch $@ $(VENV)/.run-ready
