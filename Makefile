# make venv | demo | test | docs: all that a clean clone needs is Python 3.11 to 3.13, make and a package index.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: venv demo test lint types tests notebooks docs

venv: $(STAMP)

# The stamp is written last, so an interrupted installation is taken up again. torch first and alone: it is what the rest must fit.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v < (3, 14) else "This is Python %d.%d; Millrace needs 3.11 to 3.13. Name one: make $(or $(MAKECMDGOALS),venv) PYTHON=python3.12" % v)'
	@echo "Installing into .venv (about 3.5 GB with the CPU build of torch; a few minutes)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --upgrade "pip>=25.1" "setuptools>=77"
	@$(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check torch==2.13.0
	@$(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --editable . --group dev
	@touch $@

demo: venv
	@rm -rf runs/demo
	$(BIN)/millrace run --out runs/demo

test: lint types tests notebooks docs

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: venv
	$(BIN)/basedpyright --pythonpath $(BIN)/python

# Whole runs have both cores to themselves; the other tests mostly wait for one core to compile kernels.
tests: venv
	$(BIN)/pytest --ignore=tests/whole_runs --numprocesses=2 --dist=loadfile
	$(BIN)/pytest tests/whole_runs

notebooks: venv
	$(BIN)/pytest --nbmake notebooks

# A warning is an error: a name that is gone, a page that nothing leads to.
docs: venv
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --fresh-env --quiet docs docs/_build
