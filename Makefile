# `make demo` and `make test` set up all they need in .venv; both can be run any number of times, in any order.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadgroup --durations=10

.PHONY: demo test check tests tests-fast coverage bench picture format clean

demo: $(VENV)/core
	$(BIN)/polyfed demo

test: check tests

check: $(VENV)/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

tests: $(VENV)/dev
	$(PYTEST)

# Without the tests that take over 5 seconds: while working on a change.
tests-fast: $(VENV)/dev
	$(PYTEST) -m "not slow"

# The tests, and how much of src/polyfed they run. By itself: measuring adds about a third to the tests' time.
coverage: $(VENV)/dev
	$(PYTEST) --cov --cov-report=
	$(BIN)/python .ci/report_coverage.py

bench: $(VENV)/dev
	$(BIN)/python -m benchmarks

# docs/demo.png, the picture of a demo of its own.
picture: $(VENV)/core
	rm -rf polyfed-runs/picture
	$(BIN)/polyfed demo --out polyfed-runs/picture
	cp polyfed-runs/picture/demo/demo.png docs/demo.png

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
