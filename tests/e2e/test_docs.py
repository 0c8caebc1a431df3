"""Runs or checks the commands of README and docs/."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import orjson
import pytest
import yaml

import rollyard
from rollyard import collect
from rollyard.cli.eval import ACTIONS
from rollyard.cli.options import read_options
from rollyard.cli.serve import ServeOptions
from rollyard.cli.submit import parse_arguments
from rollyard.cli.train import read_arguments
from rollyard.launchers.evaluation.lm_eval import Benchmark
from rollyard.launchers.sagemaker.settings import SageMakerSettings
from rollyard.records.data_files import INSTALLED
from rollyard.records.errors import OperatorError
from rollyard.records.types import CREATE_PARAMS
from rollyard.resources_servers.gsm8k.app import server
from rollyard.services.config.load import load
from rollyard.services.datasets.dataset import MixtureSettings
from rollyard.services.runtime.running_stack import RunningStack
from rollyard.services.server.settings import parse_settings
from tests.support.boxes import why_no_box
from tests.support.coming_from import PAGE, pair
from tests.support.commands import Command, options_of
from tests.support.doc_pages import commands, sections
from tests.support.stacks import read_rows
from tests.unit.resources_servers.answers.grading import in_process_server

PAGES = [
    INSTALLED / "README.md",
    *sorted((INSTALLED / "docs").glob("*.md")),
    *sorted((INSTALLED / "docs" / "evidence").glob("*.md")),
    *INSTALLED.glob("*/*/README.md"),
]
SOKOBAN_EVALUATION = INSTALLED / "docs" / "sokoban-evaluation.md"
"""Its blocks are shell programs; test_sokoban_evaluation_page.py runs them."""
OWN = {INSTALLED / "docs" / name for name in ("publish.md", "your-own-data.md")}
"""Their commands need the files of the page; test_own_pages.py and tests/external/packages run them."""
TUTORIAL = INSTALLED / "docs" / "tutorial.md"
"""test_authoring_pages.py follows it."""
COMING_FROM = INSTALLED / "docs" / PAGE
"""Its pairs need both projects; tests/external runs them."""
ELSEWHERE = {SOKOBAN_EVALUATION, TUTORIAL, COMING_FROM, *OWN}
SECTIONS_ELSEWHERE = {
    "environments.md": (
        *("A single turn: exact match", "Tools: number guessing"),
        "Turn by turn: the nearest number",
    ),  # need the files of the page; test_authoring_pages.py runs them
    "agents.md": ("Write an agent", "A program as the agent", "Write a model server"),  # likewise
    "nemo-gym.md": (
        *("NeMo Gym's environments, as they are", "Collect from a NeMo Gym stack"),
        "NeMo Gym's commands on Rollyard's runs and files",
    ),  # need NeMo Gym; tests/external/nemo_gym runs them
    "other-stacks.md": ("Serve Rollyard's servers to other clients",),  # test_other_stacks_page.py runs them
}
"""Sections of pages in docs/ whose commands other tests run."""
EXPORTED = {
    "policy_base_url": "http://127.0.0.1:1/v1",
    "policy_api_key": "dummy",
    "policy_model_name": "any",
    "ROLLYARD_TOKEN": "0123456789abcdef",
}


def documented_lines(page: Path) -> list[list[str]]:
    """The command lines of a page's bash blocks, split like in a shell."""
    return commands(page.read_text())


def option(word: str) -> str:
    return word.lstrip("+-").replace("_", "-")


def created_paths() -> set[str]:
    paths: set[str] = set()
    for words in (words for page in PAGES for words in documented_lines(page)):
        names = ("output", "local-dir", "output-jsonl-fpath", "output-dir", "order-fpath", "export")
        paths |= {after for before, after in pairwise(words) if before.startswith("--") and option(before) in names}
        paths |= {word.partition("=")[2] for word in words if option(word.partition("=")[0]) in names}
    return paths


TRAINED = (
    "results/train_sokoban",  # the output_dir of configs/train_sokoban.yaml
    *(f"results/sokoban_grpo/seed0/evaluations/step_0000{step}.jsonl" for step in ("00", "50")),
)
"""What training writes where its config or a documented line says."""
CREATED = created_paths() | {*TRAINED}
EXAMPLE_NAMES = (
    *("results/rollouts.jsonl", "results/base.jsonl", "results/trained.jsonl", "results/my_training"),
    *("levels/mine.xsb", "levels", "checkpoints"),
)
"""Placeholders for files of the reader."""
OTHER_PROGRAMS = (
    *("aws", "gym", "export", "ray", "mkdir", "pip", "curl", "ssh", "hf", "vllm", "docker", "cd", "source"),
    *("harbor", "inspect", "openssl", "trl", "vf-eval"),
)
"""Programs that are not part of Rollyard, and shell commands."""


def every(name: str) -> list[list[str]]:
    return [
        words for page in PAGES if page not in ELSEWHERE for words in commands(checked_text(page)) if words[0] == name
    ]


def checked_text(page: Path) -> str:
    """The page without the sections whose commands other tests run."""
    text = page.read_text()
    elsewhere = SECTIONS_ELSEWHERE.get(page.name, ()) if page.parent.name == "docs" else ()
    for title in elsewhere:
        text = text.replace(sections(text)[title], "")
    return text


@pytest.fixture
def with_vllm(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder, with a vLLM that a dry run finds and does not start."""
    vllm = here / "bin" / "vllm"
    vllm.parent.mkdir()
    vllm.touch(0o755)
    monkeypatch.setenv("PATH", f"{vllm.parent}{os.pathsep}{os.environ['PATH']}")
    return here


@pytest.mark.parametrize("words", every("ng_run"), ids=" ".join)
@pytest.mark.usefixtures("with_vllm")
def test_every_documented_ng_run_line_passes_a_dry_run(
    monkeypatch: pytest.MonkeyPatch, ng: Command, words: list[str]
) -> None:
    for name, value in EXPORTED.items():
        monkeypatch.setenv(name, value)
    closed = [re.sub(r"(?<=://)[^/,\]]+", "127.0.0.1:1", word) for word in words]  # no endpoint answers
    if "--openenv-url" in words:  # and this one would be waited for
        closed.append("++openenv_resources_server.resources_servers.openenv_environment.start_wait_s=0.1")
    checked = ng(*closed, "+dry_run=true")
    assert checked.status == 0, checked.err


@pytest.mark.parametrize("words", every("ng_eval"), ids=" ".join)
def test_every_documented_ng_eval_line_passes_a_dry_run_or_has_a_known_action(
    with_vllm: Path, monkeypatch: pytest.MonkeyPatch, ng: Command, words: list[str]
) -> None:
    if words[1] in ACTIONS:
        assert len(words) == 2
        return
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    given = [word for word in words if word not in ("--detach", "--dry-run", "+dry_run=true")]
    (with_vllm / "checkpoints").mkdir()
    checked = ng(*given, "+dry_run=true")
    assert checked.status == 0, checked.err


@pytest.mark.parametrize("words", every("ng_capacity"), ids=" ".join)
def test_every_documented_ng_capacity_line_is_calculated(ng: Command, words: list[str]) -> None:
    assert ng(*words).status == 0


@pytest.mark.parametrize("words", every("ng_serve"), ids=" ".join)
def test_every_documented_ng_serve_line_has_known_options_and_files_that_exist(words: list[str]) -> None:
    options, _ = read_options(ServeOptions, words[1:], rest=True)
    assert all((INSTALLED / path).is_file() for path in options.config_paths)
    assert options.data is None or (INSTALLED / options.data).is_file()
    if not options.config_paths and not options.head:
        assert (INSTALLED / "resources_servers" / str(options.environment) / "app.py").is_file()


@pytest.mark.parametrize("words", every("ng_train"), ids=" ".join)
def test_every_documented_ng_train_line_has_known_keys_and_files_that_exist(tmp_path: Path, words: list[str]) -> None:
    """The checks of the dry run need torch: tests/external/training/test_start_checks.py."""
    config, _ = read_arguments(words[1:], tmp_path)
    for rows in (config.input_jsonl_fpath, config.evaluation.input_jsonl_fpath):
        assert rows is None or (INSTALLED / rows).is_file() or rows in CREATED
    names = [INSTALLED / "resources_servers" / name for name in config.environments]
    assert config.head or (names and all(name.is_dir() for name in names))


def test_every_documented_line_runs_a_program_that_is_checked_here() -> None:
    others = ("make", "python", "ng_capacity", "ng_eval", "ng_eval_launcher", "ng_init", "ng_run", "ng_serve")
    checked = {*OTHER_PROGRAMS, *OPTIONS, *others, "ng_submit", "ng_train"}
    pages = [page for page in PAGES if page != SOKOBAN_EVALUATION]
    assert {words[0] for page in pages for words in documented_lines(page)} <= checked
    for page in PAGES:
        prose = re.sub(r"^```(?:bash|text)\n.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        assert not re.search(r"^(?:ng_\w+|python|pip|make) .*[+-]\w", prose, re.MULTILINE), (
            f"{page}: not in a bash block"
        )


OPTIONS = {
    name: name.removeprefix("ng_")
    for name in (
        *(
            "ng_capacity",
            "ng_collect_rollouts",
            "ng_compare",
            "ng_export",
            "ng_gate",
            "ng_lm_eval",
            "ng_merge",
            "ng_notes",
            "ng_prepare_data",
        ),
        *("ng_regrade", "ng_reward_profile", "ng_status", "ng_track", "ng_viewer"),
    )
} | {"ng_doctor": "doctor_machine"}
"""Command -> module of its options."""


@pytest.mark.parametrize("name", OPTIONS)
def test_every_documented_command_line_has_known_options_and_its_files_exist_or_are_created_by_another_line(
    name: str,
) -> None:
    for words in every(name):
        actions = {"tokens": "doctor_tokens", "env": "doctor_environment"} if name == "ng_doctor" else {}
        action = actions.get(words[1]) if words[1:] else None
        options, _ = read_options(
            options_of(action or OPTIONS[name]), words[2 if action else 1 :], rest=name == "ng_doctor"
        )
        assert all(Benchmark.read(written) for written in getattr(options, "benchmarks", ()))
        for key in ("jsonl_fpath", "input_jsonl_fpath", "rollouts_jsonl_fpath", "against", "config_paths"):
            files = getattr(options, key, None) or ()
            for path in [files] if isinstance(files, str | Path) else files:
                known = (INSTALLED / path).is_file() or str(path) in (*CREATED, *EXAMPLE_NAMES)
                assert known, f"{' '.join(words)}: {path} is neither in a fresh clone nor created by a documented line"


def modules() -> list[list[str]]:
    """Documented modules. Scripts of examples/ have tests of their own, such as test_eval_launcher.py."""
    folders = (INSTALLED, INSTALLED / "examples" / "drop_in")
    return [
        words
        for words in every("python")
        if not any((folder / words[1]).is_file() for folder in folders) and "ludic" not in words[2]
    ]


@pytest.mark.parametrize("words", modules(), ids=" ".join)
def test_every_documented_script_has_an_importable_module_known_options_and_existing_files(words: list[str]) -> None:
    assert words[1] == "-m"
    module = importlib.import_module(words[2])
    if hasattr(module, "__path__"):
        module = importlib.import_module(f"{words[2]}.__main__")
    for before, path in pairwise(words):
        if before in ("--local", "--input", "--shots-from", "--apart-from", "--rollouts-path", "--levels-folder"):
            assert path in (*CREATED, *EXAMPLE_NAMES) or (INSTALLED / path).exists(), path
    with pytest.raises((OperatorError, SystemExit)) as raised:
        module.main([*words[3:], "--no-such-option"])
    # The unknown option must be the only error in the line.
    assert re.search(r"arguments: --no-such-option(?:, did you mean [^,]*)?$", str(raised.value))


@pytest.mark.parametrize("words", every("ng_submit"), ids=" ".join)
def test_every_documented_ng_submit_line_has_known_options(words: list[str]) -> None:
    assert parse_arguments(words[1:]) is not None


def test_every_pair_of_coming_from_is_run_by_a_test() -> None:
    suites = (INSTALLED / "tests" / "external").rglob("test_*.py")
    run = {name for path in suites for name in re.findall(r'\bpair\("(.*?)"', path.read_text())}
    pages = sections(COMING_FROM.read_text())
    assert run == pages.keys() and all(pair(name).theirs and pair(name).ours for name in pages)


def test_the_documented_sagemaker_settings_are_well_formed() -> None:
    settings, *_ = re.findall(r"```yaml\n(.*?)```", (INSTALLED / "docs/sagemaker.md").read_text(), re.DOTALL)
    assert parse_settings(SageMakerSettings, yaml.safe_load(settings), "docs/sagemaker.md").role


def test_the_documented_mixture_is_well_formed() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", (INSTALLED / "docs/data.md").read_text(), re.DOTALL)
    assert len(parse_settings(MixtureSettings, yaml.safe_load(text), "docs/data.md").datasets) == 3


@pytest.mark.parametrize("words", every("make"), ids=" ".join)
def test_every_documented_make_target_exists(words: list[str]) -> None:
    dry = subprocess.run(["make", "-n", *words[1:]], cwd=INSTALLED, capture_output=True, text=True, check=False)
    assert dry.returncode == 0, dry.stderr


def test_every_make_target_in_the_text_exists() -> None:
    targets = re.findall(r"^([a-z0-9-]+):", (INSTALLED / "Makefile").read_text(), re.MULTILINE)
    for page in [*PAGES, *INSTALLED.glob("*.md")]:
        for target in re.findall(r"`make ([a-z][a-z-]*)[^`]*`", page.read_text()):
            assert target in targets, f"{page}: make {target}"


def test_every_link_between_pages_leads_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


async def test_the_documented_verdict_is_what_the_environment_returns() -> None:
    (text,) = re.findall(r"```json\n(.*?)```", (INSTALLED / "docs/ng-eval.md").read_text(), re.DOTALL)
    documented = orjson.loads(text)
    async with in_process_server(server) as environment:
        verdict = await environment.verdict(
            {"question": "9 times 2?", "expected_answer": "18"}, r"So it is \boxed{18}."
        )
    assert {key: verdict[key] for key in documented} == documented


BUILTIN_MODEL = "responses_api_models/builtin_model/configs/builtin_model.yaml"


EXTERNAL = ("inspect_task", "openenv_environment", "verifiers_environment")
"""Environments of packages or servers that are not beside the others. Tests in tests/external play their examples."""


EXAMPLES = {
    path.parent.parent.name: path
    for path in sorted(INSTALLED.glob("resources_servers/*/data/example.jsonl"))
    if path.parent.parent.name not in EXTERNAL
}


def config_of(environment: str) -> str:
    return f"resources_servers/{environment}/configs/{environment}.yaml"


def agent_of(environment: str) -> str:
    """The agent of an environment's own config, which must be complete without the others."""
    servers = load([config_of(environment), BUILTIN_MODEL], (), [INSTALLED], {}).servers
    return next(spec.name for spec in servers if spec.family == "agents")


@pytest.fixture(scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningStack]:
    """All environments in one run."""
    folder: Path = tmp_path_factory.mktemp("run")
    # The built-in policy may call a program that never ends, such as `yes`, and ask for a minute.
    harbor = "harbor_resources_server.resources_servers.harbor_task"
    limits = [f"+{harbor}.max_command_s=2", f"{harbor}.boxes=namespaces"]
    played = [name for name in EXAMPLES if name != "harbor_task"]
    if await why_no_box():
        limits = []
    else:
        played.append("harbor_task")
    configs = [BUILTIN_MODEL, *map(config_of, played)]
    async with rollyard.stack(configs, *limits, colocate=True, folder=folder) as running:
        yield running


@pytest.mark.parametrize("name", EXAMPLES)
async def test_every_example_row_is_played_to_the_end(tmp_path: Path, stack: RunningStack, name: str) -> None:
    agent = agent_of(name)
    if agent not in stack.servers:
        pytest.skip(f"{name} needs bubblewrap")
    # What ng_collect_rollouts calls, without the start of a process for each environment.
    params = {"temperature": 0}
    output = tmp_path / "out.jsonl"
    collected = await collect(stack, EXAMPLES[name], output, agent_name=agent, responses_create_params=params)
    assert collected.state == "complete", collected
    assert len(read_rows(output)) == len(read_rows(EXAMPLES[name]))


def test_every_environment_has_example_rows() -> None:
    folders = {path.parent.name for path in INSTALLED.glob("resources_servers/*/app.py")}
    assert EXAMPLES.keys() | EXTERNAL >= {name for name in folders if (INSTALLED / config_of(name)).exists()}


def test_the_known_create_parameters_are_openais_and_those_of_engines() -> None:
    from openai.types.responses.response_create_params import ResponseCreateParamsBase

    of_engines = {"seed", "top_k", "min_p", "min_tokens", "repetition_penalty"}
    assert {*ResponseCreateParamsBase.__annotations__, "stream", *of_engines} == CREATE_PARAMS
