# make venv | demo | check | bits | bounds | test | support | docs | newest | versions-gpu | lock: all that a clean clone needs is Python 3.11 to 3.13, make and a package index.
PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
# The branch that `make check` and `make bits` compare with.
BASE ?= main
# What pip is held to; empty for the newest versions that pyproject.toml allows.
LOCK ?= --constraint constraints.txt
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Modules are compiled when they are imported: compiling all that is installed takes half a minute.
PIP := $(BIN)/python -m pip install --quiet --quiet --no-compile --disable-pip-version-check

# Tests start many processes, each of which would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: venv demo check bits bounds test support lint types tests notebooks docs site newest versions-gpu lock

venv: $(STAMP)

# The stamp is written last, so an interrupted installation is taken up again. torch and both halves of the lock are unpacked side by side, without
# looking at what they need; the last call adds what is not there: all of it where the lock names what this platform does not have.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v < (3, 14) else "This is Python %d.%d; Millrace needs 3.11 to 3.13. Name one: make $(or $(MAKECMDGOALS),venv) PYTHON=python3.12" % v)'
	@echo "Installing into $(VENV) (about 3.5 GB with the CPU build of torch; a few minutes)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --upgrade "pip>=25.1" "setuptools>=77"
	@grep -Ev '^(#|(pip|setuptools|torch)=)' constraints.txt | awk '{ print > ("$(VENV)/half" NR % 2) }'
	@printf -- '--no-deps %s\n' $(TORCH) $(if $(LOCK),--requirement=$(VENV)/half0 --requirement=$(VENV)/half1) | xargs -L 1 -P 3 $(PIP) 2> /dev/null || true
	@$(PIP) $(LOCK) $(TORCH) --editable . --group dev
	@touch $@

demo: venv
	@rm -rf runs/demo
	$(BIN)/millrace run --out runs/demo

# What starts no processes is done beside the tests, which wait for each other at times.
test: lint
	@$(MAKE) --no-print-directory --jobs=2 tests types site

# The tests of what has changed since BASE, without whole runs: see tests/layout.py.
check: lint types
	$(BIN)/pytest -m "not slow" --numprocesses=2 --dist=loadfile --durations=10 $$($(BIN)/python tests/layout.py $(BASE))

# Whether any number has changed since BASE: see benchmarks/same_bits.py.
bits: venv
	@$(BIN)/python benchmarks/same_bits.py --base $(BASE)

# Compiled kernels check no indices. Here they do, and are compiled into a cache of their own.
bounds: venv
	NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=$(CURDIR)/build/bounds $(BIN)/pytest --numprocesses=2 --dist=loadfile --ignore=tests/stages/kernels/runtime \
	  tests/stages tests/pipeline/interop

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# `benchmarks/` imports the package by its name: the link gives it that name, whatever the folder of this checkout is called.
types: venv
	@mkdir -p build/types && ln -sfn ../.. build/types/millrace
	$(BIN)/pyrefly check --python-interpreter-path $(BIN)/python --output-format min-text --summary=none

# With the notebooks, which `make notebooks` runs alone. What all of them import is imported by one process, which compiles the common kernels and
# forks the others. Three on two cores: they wait at times.
tests: venv
	$(BIN)/pytest --dist=loadfile --no-loadscope-reorder --durations=40 --numprocesses=3 --compile-kernels --nbmake tests notebooks

notebooks: venv
	$(BIN)/pytest --nbmake notebooks --numprocesses=2

# Every job that the support table accepts is run, killed and gone on with (some 15 minutes), and docs/support.json notes it.
support: venv
	$(BIN)/python -m millrace.tests.contracts.support_cells

# The site shows the notebooks' stored outputs: they are compared with fresh ones first, as `tests` does.
docs: notebooks
	@$(MAKE) --no-print-directory site

# The pages alone. A warning is an error: a name that is gone, a page that nothing leads to.
site: venv
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --fresh-env --quiet docs docs/_build

# The newest versions, in an environment of their own: prints those that differ from constraints.txt, then what fails. TORCH=torch tries its
# newest too. Goes through all steps, whichever fails.
newest:
	@rm -rf .venv-newest
	@$(MAKE) --no-print-directory venv VENV=.venv-newest LOCK=
	@$(MAKE) --no-print-directory lock VENV=.venv-newest LOCKED=.venv-newest/versions.txt
	@diff --unchanged-line-format= --old-line-format='tested %L' --new-line-format='newest %L' constraints.txt .venv-newest/versions.txt || true
	@$(MAKE) --no-print-directory --keep-going lint types tests site VENV=.venv-newest LOCK=

# The versions that RAPIDS holds back (constraints-gpu.txt), in an environment of their own, without RAPIDS: the fast tests of processors.
versions-gpu:
	@$(MAKE) --no-print-directory venv VENV=.venv-gpu
	.venv-gpu/bin/python -m pip install --quiet --no-deps $$(awk -F== 'NR == FNR { known[$$1] = $$2; next } $$1 in known && known[$$1] != $$2' constraints.txt constraints-gpu.txt)
	.venv-gpu/bin/pytest -m "not slow" --dist=loadfile --numprocesses=3 --compile-kernels --ignore tests/whole_runs tests

# Only from an environment that has passed `make test`.
LOCKED ?= constraints.txt
lock:
	@head -2 constraints.txt > $(VENV)/locked
	@$(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu$$//' >> $(VENV)/locked
	@mv $(VENV)/locked $(LOCKED)
