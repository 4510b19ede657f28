# `make demo` and `make test` set up all they need in .venv; both can be run any number of times, in any order.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test check tests bench format clean

demo: $(VENV)/core
	$(BIN)/polyfed demo

test: check tests

check: $(VENV)/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

tests: $(VENV)/dev
	$(BIN)/python -m pytest -n 2 --dist loadgroup

bench: $(VENV)/dev
	$(BIN)/python -m benchmarks

format: $(VENV)/dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# torch first and pinned: whatever is installed afterwards finds it there and pulls no other build.
$(VENV)/core: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --constraint constraints.txt torch
	$(PIP) --constraint constraints.txt --editable .
	touch $@

$(VENV)/dev: $(VENV)/core
	$(PIP) --constraint constraints.txt --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
