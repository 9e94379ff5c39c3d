# Everything a person runs. `make` alone prints this list.
#
# The targets make their own virtual environment and make it again when pyproject.toml changes.
# PYTHON=python3.12 chooses the interpreter; ARGS="-k commit" is passed on to pytest or the
# benchmark; EXTRAS names the optional dependencies to install; JOBS is the number of processes that
# run tests side by side (JOBS=0: in one, which -x and --pdb like better); SECONDS is how long
# `make sim` takes, and SEED makes it walk the same way again.

VENV   ?= .venv
EXTRAS ?= dev,spark
ARGS   ?=
JOBS   ?= auto
SECONDS ?= 1800
SEED   ?=

comma := ,
PY    := $(VENV)/bin/python
# One stamp per set of extras, so that asking for another set installs it.
READY := $(VENV)/.ready-$(subst $(comma),-,$(EXTRAS))
PEERS := $(READY)-bench

export PYTHON
.DEFAULT_GOAL := help
.PHONY: help demo quick test test-more check format bench sim clean

help:
	@echo "make demo       see it work: transfers, live queries, a crash, recovery, time travel"
	@echo "make quick      a sample of the tests, in under 90 s: no Spark, no other processes"
	@echo "make test       run the tests, in under 15 minutes"
	@echo "make test-more  run what does not fit into them"
	@echo "make check      lint, formatting, types"
	@echo "make format     put the code into its format"
	@echo "make bench      measure against SQLite, DuckDB and Delta; results in build/bench/"
	@echo "make sim        seeded crashes, faults and histories for SECONDS=$(SECONDS), SEED=..."
	@echo "make clean      remove what make has made, except $(VENV)"

$(READY): pyproject.toml tools/setup.sh
	@tools/setup.sh $(VENV) $(EXTRAS)
	@touch $@

$(PEERS): pyproject.toml tools/setup.sh
	@tools/setup.sh $(VENV) $(EXTRAS),bench
	@touch $@

demo: $(READY)
	@$(PY) examples/demo.py $(ARGS)

# A process that dies (a test hung, see tests/watchdog.py) is not replaced: pytest-xdist would wait
# for ever.
PYTEST = $(PY) -m pytest -q -n $(JOBS) --maxprocesses 6 --max-worker-restart 0

test: $(READY)
	@$(PYTEST) $(ARGS)

test-more: $(READY)
	@$(PYTEST) -m "more and not sim" $(ARGS)

quick: $(READY)
	@$(PYTEST) --quick tests/unit tests/scenario tests/model tests/test_tidy.py $(ARGS)

check: $(READY)
	@$(PY) -m ruff check
	@$(PY) -m ruff format --check
	@$(PY) -m mypy

format: $(READY)
	@$(PY) -m ruff check --fix
	@$(PY) -m ruff format

bench: $(PEERS)
	@$(PY) -m bench $(ARGS)

sim: $(READY)
	@$(PY) -m tests.sim.runner --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(ARGS)

clean:
	@rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
