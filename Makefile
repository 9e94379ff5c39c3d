# Everything a person runs. `make` alone prints this list.
#
# The targets make their own virtual environment and make it again when pyproject.toml changes.
# PYTHON=python3.12 chooses the interpreter; ARGS="-k commit" is passed on to pytest or the
# benchmark; EXTRAS names the optional dependencies to install; JOBS is the number of processes that
# run tests side by side (JOBS=0: in one, which -x and --pdb like better).

VENV   ?= .venv
EXTRAS ?= dev,spark
ARGS   ?=
JOBS   ?= auto

comma := ,
PY    := $(VENV)/bin/python
# One stamp per set of extras, so that asking for another set installs it.
READY := $(VENV)/.ready-$(subst $(comma),-,$(EXTRAS))
PEERS := $(READY)-bench

export PYTHON
.DEFAULT_GOAL := help
.PHONY: help demo test check format bench sim clean

help:
	@echo "make demo     see it work: transfers, live queries, a crash, recovery, time travel"
	@echo "make test     run the tests"
	@echo "make check    lint, formatting, types"
	@echo "make format   put the code into its format"
	@echo "make bench    measure against SQLite, DuckDB and Delta; results in build/bench/"
	@echo "make sim      long seeded runs of crashes, faults and random histories"
	@echo "make clean    remove what make has made, except $(VENV)"

$(READY): pyproject.toml tools/setup.sh
	@tools/setup.sh $(VENV) $(EXTRAS)
	@touch $@

$(PEERS): pyproject.toml tools/setup.sh
	@tools/setup.sh $(VENV) $(EXTRAS),bench
	@touch $@

demo: $(READY)
	@$(PY) examples/demo.py $(ARGS)

# loadgroup keeps the tests of Spark in one process: one session serves them all. A process that
# dies (a test hung, see pyproject.toml) is not replaced: pytest-xdist would wait for ever.
test: $(READY)
	@$(PY) -m pytest -q -n $(JOBS) --maxprocesses 6 --dist loadgroup --max-worker-restart 0 $(ARGS)

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
	@HALOCLINE_SIM=1 $(PY) -m pytest -q -m sim $(ARGS)

clean:
	@rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
