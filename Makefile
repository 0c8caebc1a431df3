# make demo   the main job on the built-in policy, from nothing to a result
# make test   set up and run the tests
# make check  ruff, mypy --strict, the import rules
# make bench  what we claim about speed, measured here
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: setup demo test test-crash check bench format lock clean

setup: $(READY)

# Exact versions with hashes; uv when it is there, pip otherwise.
$(READY): requirements-dev.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; say which with: make PYTHON=python3.12")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) ..."
	@if command -v uv >/dev/null 2>&1; then \
	    uv pip install -q --python $(BIN)/python --require-hashes -r requirements-dev.lock && \
	    uv pip install -q --python $(BIN)/python --no-deps --no-build-isolation -e .; \
	else \
	    $(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements-dev.lock && \
	    $(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .; \
	fi
	@touch $@

demo: $(READY)
	@PATH="$(CURDIR)/$(BIN):$$PATH" sh configs/demo.sh

test: $(READY)
	$(BIN)/python -m pytest --ignore tests/crash --ignore tests/ray

test-crash: $(READY)
	$(BIN)/python -m pytest tests/crash

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_structure.py

bench: $(READY)
	$(BIN)/python -m benchmarks

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Needs uv. The locks hold for every Python from 3.11 on and name no index.
LOCK := uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-header --no-annotate -q
lock:
	$(LOCK) -o requirements.lock
	$(LOCK) --extra dev -o requirements-dev.lock

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .pytest_cache .ruff_cache
