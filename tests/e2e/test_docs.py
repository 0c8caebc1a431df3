"""What README and docs/ say to type is typed here."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
from itertools import pairwise
from pathlib import Path

import orjson
import pytest
import yaml

from rollyard.resources_servers.gsm8k.app import server
from rollyard.services.cli.collect_rollouts import CollectOptions
from rollyard.services.cli.diagnostics.machine import DoctorOptions
from rollyard.services.cli.diagnostics.tokens import TokenOptions
from rollyard.services.cli.lm_eval import LmEvalOptions
from rollyard.services.cli.options import Options, read_options
from rollyard.services.cli.prepare_data import PrepareOptions
from rollyard.services.cli.reward_profile import ProfileOptions
from rollyard.services.cli.status import StatusOptions
from rollyard.services.cli.track import TrackOptions
from rollyard.services.cli.viewer import ViewerOptions
from rollyard.services.datasets.settings import MixtureSettings
from rollyard.services.errors import OperatorError
from rollyard.services.evaluation.benchmarks import Benchmark
from rollyard.services.io.search_path import INSTALLED
from rollyard.services.rollouts.collection import CREATE_PARAMS
from rollyard.services.server.settings import parse_settings
from tests.support.commands import BIN, command, config, ng_run
from tests.support.doc_pages import commands
from tests.support.stacks import read_rows
from tests.unit.resources_servers.answers.grading import serving

PAGES = [INSTALLED / "README.md", *sorted((INSTALLED / "docs").glob("*.md")), *INSTALLED.glob("*/*/README.md")]
AUTHORING = {INSTALLED / "docs" / name for name in ("environments.md", "agents.md", "model-servers.md")}
"""Their commands need their files: test_authoring_pages.py types them."""
EXPORTED = {
    "policy_base_url": "http://127.0.0.1:10240/v1",
    "policy_api_key": "dummy",
    "policy_model_name": "any",
    "ROLLYARD_TOKEN": "0123456789abcdef",
}


def typed(page: Path) -> list[list[str]]:
    """The command lines of a page's bash blocks, split as a shell does."""
    return commands(page.read_text())


def made() -> set[str]:
    """Files and folders that a documented line makes for another."""
    found: set[str] = set()
    for words in (words for page in PAGES for words in typed(page)):
        found |= {after for before, after in pairwise(words) if before in ("--output", "--local-dir")}
        keys = ("+output_jsonl_fpath", "+output_dir", "+order_fpath", "+export")
        found |= {word.partition("=")[2] for word in words if word.partition("=")[0] in keys}
    return found


MADE = made()
EXAMPLE_NAMES = ("results/base.jsonl", "results/trained.jsonl", "levels/mine.xsb", "levels", "checkpoints")
"""Files that stand for the reader's own."""
OTHERS = ("export", "mkdir", "pip", "curl", "ssh", "hf", "vllm", "docker")
"""Programs that are not ours, or the shell's."""


def every(name: str) -> list[list[str]]:
    return [words for page in PAGES if page not in AUTHORING for words in typed(page) if words[0] == name]


@pytest.mark.parametrize("words", every("ng_run"), ids=" ".join)
async def test_every_documented_ng_run_line_is_well_configured(tmp_path: Path, words: list[str]) -> None:
    vllm = tmp_path / "bin" / "vllm"  # which is looked for and not run
    vllm.parent.mkdir()
    vllm.touch(0o755)
    path = f"{BIN}{os.pathsep}{vllm.parent}{os.pathsep}{os.environ['PATH']}"
    here = [re.sub(r"https?://(?!127\.)[^,\]]+", "http://127.0.0.1:1/v1", word) for word in words]
    checked = await command(*here, "+dry_run=true", cwd=tmp_path, env={**EXPORTED, "PATH": path})
    assert checked.status == 0, checked.err


@pytest.mark.parametrize("words", every("ng_collect_rollouts"), ids=" ".join)
def test_every_documented_collect_line_has_known_options_and_an_input_that_exists(words: list[str]) -> None:
    options, _ = read_options(CollectOptions, words[1:])
    rows = str(options.input_jsonl_fpath)
    assert options.data or (INSTALLED / rows).is_file() or rows in MADE


def test_every_documented_line_is_of_a_program_whose_lines_are_checked_here() -> None:
    checked = {*OTHERS, *OPTIONS, "make", "python", "ng_init", "ng_run"}
    assert {words[0] for page in PAGES for words in typed(page)} <= checked
    for page in PAGES:
        prose = re.sub(r"^```(?:bash|text)\n.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        assert not re.search(r"^(?:ng_\w+|python|pip|make) .*[+-]\w", prose, re.MULTILINE), (
            f"{page}: not in a bash block"
        )


OPTIONS: dict[str, type[Options]] = {
    "ng_collect_rollouts": CollectOptions,
    "ng_doctor": DoctorOptions,
    "ng_lm_eval": LmEvalOptions,
    "ng_prepare_data": PrepareOptions,
    "ng_reward_profile": ProfileOptions,
    "ng_status": StatusOptions,
    "ng_track": TrackOptions,
    "ng_viewer": ViewerOptions,
}


@pytest.mark.parametrize("name", OPTIONS)
def test_every_documented_line_of_a_command_has_known_options_and_files_that_a_fresh_clone_has_or_a_line_makes(
    name: str,
) -> None:
    for words in every(name):
        model = TokenOptions if words[1:2] == ["tokens"] else OPTIONS[name]
        options, _ = read_options(model, [word for word in words[1:] if word != "tokens"], rest=name == "ng_doctor")
        for key in ("jsonl_fpath", "input_jsonl_fpath", "rollouts_jsonl_fpath", "against", "config_paths"):
            given = getattr(options, key, None) or ()
            for path in [given] if isinstance(given, str | Path) else given:
                known = (INSTALLED / path).is_file() or str(path) in (*MADE, *EXAMPLE_NAMES)
                assert known, f"{' '.join(words)}: {path} is neither in a fresh clone nor made by a documented line"


@pytest.mark.parametrize("words", every("python"), ids=" ".join)
def test_every_documented_script_runs_by_its_modules_name_with_known_options_and_files(words: list[str]) -> None:
    assert words[1] == "-m"
    module = importlib.import_module(words[2])
    for before, path in pairwise(words):
        if before in ("--local", "--input", "--shots-from", "--apart-from", "--rollouts-path", "--levels-folder"):
            assert path in (*MADE, *EXAMPLE_NAMES) or (INSTALLED / path).exists(), path
    with pytest.raises((OperatorError, SystemExit)) as raised:
        module.main([*words[3:], "--no-such-option"])
    # Nothing else is wrong with the line.
    assert "unrecognized arguments: --no-such-option" in str(raised.value)


@pytest.mark.parametrize("words", every("ng_lm_eval"), ids=" ".join)
def test_every_documented_lm_eval_line_has_known_options_and_benchmarks(words: list[str]) -> None:
    options, _ = read_options(LmEvalOptions, words[1:])
    assert all(Benchmark.read(written) for written in options.benchmarks)


def test_the_documented_mixture_is_well_formed() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", (INSTALLED / "docs/data.md").read_text(), re.DOTALL)
    assert len(parse_settings(MixtureSettings, yaml.safe_load(text), "docs/data.md").datasets) == 3


@pytest.mark.parametrize("words", every("make"), ids=" ".join)
def test_every_documented_make_target_exists(words: list[str]) -> None:
    dry = subprocess.run(["make", "-n", *words[1:]], cwd=INSTALLED, capture_output=True, text=True, check=False)
    assert dry.returncode == 0, dry.stderr


def test_every_make_target_in_the_text_exists() -> None:
    targets = re.findall(r"^([a-z0-9-]+):", (INSTALLED / "Makefile").read_text(), re.MULTILINE)
    for page in [*PAGES, *INSTALLED.glob("*.md"), *INSTALLED.glob("docs/decisions/*.md")]:
        for target in re.findall(r"`make ([a-z][a-z-]*)[^`]*`", page.read_text()):
            assert target in targets, f"{page}: make {target}"


def test_every_link_between_pages_leads_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


async def test_the_documented_verdict_is_the_environments() -> None:
    (text,) = re.findall(r"```json\n(.*?)```", (INSTALLED / "docs/evaluating.md").read_text(), re.DOTALL)
    shown = orjson.loads(text)
    async with serving(server) as world:
        verdict = await world.verdict({"question": "9 times 2?", "expected_answer": "18"}, r"So it is \boxed{18}.")
    assert {key: verdict[key] for key in shown} == shown


async def test_every_example_row_is_played_to_an_end(tmp_path: Path) -> None:
    worlds = sorted(path.parent.parent for path in INSTALLED.glob("resources_servers/*/data/example.jsonl"))
    assert worlds
    for folder in worlds:
        name = folder.name
        paths = config(
            f"resources_servers/{name}/configs/{name}.yaml",
            "responses_api_models/builtin_model/configs/builtin_model.yaml",
        )
        example = folder / "data" / "example.jsonl"
        async with ng_run(paths, "+colocate=true", cwd=tmp_path, name=name) as running:
            agent = re.search(r"(\S+agent) +ready", running.printed)
            assert agent is not None
            collected = await command(
                "ng_collect_rollouts",
                f"+agent_name={agent[1]}",
                f"+input_jsonl_fpath={example}",
                f"+output_jsonl_fpath={name}.jsonl",
                "+num_repeats=1",
                "+responses_create_params.temperature=0",
                cwd=tmp_path,
            )
        assert collected.status == 0, collected.err
        assert len(read_rows(tmp_path / f"{name}.jsonl")) == len(read_rows(example))


def test_the_known_create_parameters_are_openais_and_the_seed() -> None:
    from openai.types.responses.response_create_params import ResponseCreateParamsBase

    assert {*ResponseCreateParamsBase.__annotations__, "seed", "stream"} == CREATE_PARAMS
