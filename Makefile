# `make demo` and `make test` set up all they need in .venv; both can be run any number of times, in any order.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadgroup --durations=10

.PHONY: demo test check tests evidence tests-fast coverage chaos bench picture overview format clean

demo: $(VENV)/core
	$(BIN)/polyfed demo

test: check tests

check: $(VENV)/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

tests: $(VENV)/dev
	$(PYTEST) -m "not evidence"

# What takes long, and shows again in full what `make test` shows in short. CI runs it.
evidence: $(VENV)/dev
	$(PYTEST) -m evidence

# Without the tests that take over 5 seconds: while working on a change.
tests-fast: $(VENV)/dev
	$(PYTEST) -m "not slow and not evidence"

# The tests, and how much of src/polyfed they run. By itself: measuring adds about a third to the tests' time.
coverage: $(VENV)/dev
	$(PYTEST) --cov --cov-report=
	$(BIN)/python .ci/report_coverage.py

# Kills and hostile files for MINUTES, over all methods; ends with a table of what was tried and what failed.
MINUTES ?= 10
chaos: $(VENV)/dev
	$(BIN)/python -m tests.chaos --minutes $(MINUTES)

bench: $(VENV)/dev
	$(BIN)/python -m benchmarks

# docs/demo.png, the picture of a demo of its own.
picture: $(VENV)/core
	rm -rf polyfed-runs/picture
	$(BIN)/polyfed demo --out polyfed-runs/picture
	cp polyfed-runs/picture/demo/demo.png docs/demo.png

# docs/overview.png and the table of docs/overview.md: all methods, three seeds, minutes. Given again it goes on.
overview: $(VENV)/core
	test -e polyfed-runs/overview.yaml || $(BIN)/polyfed new polyfed-runs/overview.yaml --example overview
	$(BIN)/polyfed sweep polyfed-runs/overview.yaml --seeds 3
	cp polyfed-runs/overview-sweep/cost.png docs/overview.png
	cat polyfed-runs/overview-sweep/results.md

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
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage
