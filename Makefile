# Two commands for a newcomer: `make demo` and `make test`. Each makes the environment it needs.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.PHONY: demo test test-servers lint types check clean

$(VENV)/.run: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "openloop needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>/dev/null || echo not there). Name another with: make PYTHON=python3.12 ..." >&2; exit 2; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "this Python can't make virtual environments: install its venv package (Debian: apt-get install python3-venv) or name another with: make PYTHON=python3.12 ..." >&2; exit 2; }
	@echo "installing openloop into $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.test: $(VENV)/.run
	@echo "installing what the tests need ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test,lint]'
	@touch $@

demo: $(VENV)/.run
	@$(BIN)/bench sweep scenarios/rag.yaml

test: $(VENV)/.test
	@$(BIN)/python -m pytest -q

# Real vLLM and llama.cpp, installed and built by the scripts beside this checkout at the first start (CONTRIBUTING.md).
test-servers: $(VENV)/.test
	@$(BIN)/python -m pytest -q -o timeout=3600 tests/servers

lint: $(VENV)/.test
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(VENV)/.test
	@$(BIN)/mypy

# What CI runs. OPENLOOP_STRICT_SKIPS makes a skip that is not listed in tests/conftest.py a failure.
check: export OPENLOOP_STRICT_SKIPS = 1
check: lint types test

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
