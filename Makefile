# Two commands do everything: `make demo` and `make test`. Both set up .venv first, and skip that when nothing changed.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test unit lint format docs browser setup clean

demo: setup
	$(BIN)/electra demo

test: setup lint browser
	$(BIN)/python -m pytest -n 2 --dist worksteal

unit: setup
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The pages are tested in Debian's chromium. Where it is not there and cannot be installed, these tests are skipped, and say so.
browser:
	@command -v chromium > /dev/null || command -v chromium-browser > /dev/null || command -v google-chrome > /dev/null \
	|| { [ "$$(id -u)" = 0 ] && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium; } > /dev/null 2>&1 \
	|| echo "no chromium, and it cannot be installed here: the tests in a browser will be skipped (Debian: apt install chromium)"

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "site/index.html"

setup: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable ".[dev]"
	@$(BIN)/python -m compileall -qq -j 0 .venv/lib || true # on all cores, where pip would use one; a few files are templates
	@touch $@

clean:
	rm -rf .venv build site *.egg-info .mypy_cache .pytest_cache .ruff_cache
