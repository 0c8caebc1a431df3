# make demo   the main job on the built-in policy, from nothing to a result
# make test   set up and run the tests
# make test-ray  the same for +ray_head_node_address, on real Ray clusters
# make check  ruff, mypy --strict, the import rules
# make bench  what we claim about speed, measured here
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
RAY    := .venv-ray

.PHONY: setup demo test test-crash test-ray check bench bench-quick format lock clean

setup: $(READY)

# An environment with exact versions, by hash; uv when it is there, pip otherwise.
define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; say which with: make PYTHON=python3.12")'
	@test -x $(1)/bin/python || $(PYTHON) -m venv $(1)
	@echo "installing into $(1) ..."
	@if command -v uv >/dev/null 2>&1; then \
	    uv pip install -q --python $(1)/bin/python --require-hashes -r $(2) && \
	    uv pip install -q --python $(1)/bin/python --no-deps --no-build-isolation -e .; \
	else \
	    $(1)/bin/python -m pip install -q --disable-pip-version-check --require-hashes -r $(2) && \
	    $(1)/bin/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .; \
	fi
	@touch $@
endef

$(READY): requirements-dev.lock pyproject.toml
	$(call install,$(VENV),requirements-dev.lock)

$(RAY)/.ready: requirements-ray.lock pyproject.toml
	$(call install,$(RAY),requirements-ray.lock)

demo: $(READY)
	@PATH="$(CURDIR)/$(BIN):$$PATH" sh configs/demo.sh

test: $(READY)
	$(BIN)/python -m pytest --ignore tests/crash

test-crash: $(READY)
	$(BIN)/python -m pytest tests/crash

# Real Ray clusters, in an environment of their own (590 MB). Two machines: as root, in network namespaces.
test-ray: $(RAY)/.ready
	$(RAY)/bin/python -m pytest tests/ray

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_structure.py

bench: $(READY)
	$(BIN)/python -m benchmarks

# That the benchmarks run; their figures mean little here.
bench-quick: $(READY)
	$(BIN)/python -m benchmarks --quick

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Needs uv. The locks hold for every Python from 3.11 on and name no index.
LOCK := uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-header --no-annotate -q
lock:
	$(LOCK) -o requirements.lock
	$(LOCK) --extra dev -o requirements-dev.lock
	$(LOCK) --extra dev --extra ray -c requirements-dev.lock -o requirements-ray.lock

clean:
	rm -rf $(VENV) $(RAY) build *.egg-info .mypy_cache .pytest_cache .ruff_cache
