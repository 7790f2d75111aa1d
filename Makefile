# Two commands do everything: `make demo` and `make test`. Both set up .venv first, and skip that when nothing changed.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal

.PHONY: demo test test-long reliability lint format docs browser setup setup-dev clean

demo: setup
	$(BIN)/electra demo

test: setup-dev lint
	$(PYTEST) -m "not long"

test-long: setup-dev
	$(PYTEST) -m long

# Every promise of docs/reliability.md with many trials: about an hour.
reliability: setup-dev
	$(PYTEST) -m promise --trials 20 --reliability docs/reliability.md

lint: setup-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The pages are tested in Debian's chromium. Where it is not there and cannot be installed, these tests are skipped, and say so.
browser:
	@command -v chromium > /dev/null || command -v chromium-browser > /dev/null || command -v google-chrome > /dev/null \
	|| { [ "$$(id -u)" = 0 ] && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium; } > /dev/null 2>&1 \
	|| echo "no chromium, and it cannot be installed here: the tests in a browser will be skipped (Debian: apt install chromium)"

docs: setup-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "site/index.html"

setup: .venv/installed
setup-dev: .venv/installed-dev browser

.venv:
	$(PYTHON) -m venv .venv

# Bytecode is compiled on all cores, where pip would use one; a few files of packages are templates that do not compile.
.venv/installed: pyproject.toml constraints.txt | .venv
	$(PIP) .
	@$(BIN)/python -m compileall -qq -j 0 .venv/lib || true
	@touch $@

.venv/installed-dev: pyproject.toml constraints.txt | .venv
	$(PIP) ".[dev]"
	@$(BIN)/python -m compileall -qq -j 0 .venv/lib || true
	@touch .venv/installed $@

clean:
	rm -rf .venv build site *.egg-info .mypy_cache .pytest_cache .ruff_cache
