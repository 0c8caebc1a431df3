"""Flags, sweep and config become combinations, a model and jobs."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from rollyard.launchers.evaluation.nemo_rl import load_tree
from rollyard.launchers.slurm.launch import read_arguments
from rollyard.launchers.slurm.launch_planner import (
    ModelChoice,
    Planned,
    as_yaml,
    choose_model,
    merge,
    read_config,
    validate,
)
from rollyard.launchers.slurm.sweep import Setting, find_value
from rollyard.records.errors import OperatorError
from rollyard.records.types import Json
from tests.support.launches import CONFIG, MODEL, Checkpoints, LaunchSite

DCP = ("--dcp-ckpt-path", "step_170/policy/weights/", "--dcp-config", "step_170/config.yaml")
SWEEP = ("--sweep", "sweep.yaml")


@pytest.fixture
def site(here: Path) -> LaunchSite:
    (here / "step_170/policy/weights").mkdir(parents=True)
    (here / "step_170/config.yaml").touch()
    site = LaunchSite(here)
    site.write("sweep.yaml", "generation.temperature: [0.6, 0.8]\n")
    site.write("mine.yaml", "defaults: examples/configs/eval.yaml\ngeneration: {temperature: 0.3}\n")
    return site


def tree(planned: Planned, number: int = 0) -> Json:
    found: Json = yaml.safe_load(planned.files[planned.launch.combinations[number].config])
    return found


@pytest.mark.parametrize(
    ("sweep", "words", "expected"),
    [
        ("temperature: [0.6]", [], {"temperature": 0.6, "max_new_tokens": 2048}),  # sweep over config
        ("top_p: [0.9]", ["generation.top_p=0.5"], {"top_p": 0.5}),  # command line over sweep
        # A mapping is merged into that of the config, as in Hydra, so that the engine's settings stay.
        (
            "temperature: 0.6\ngeneration.vllm_cfg: [{max_model_len: 100}]",
            [],
            {"max_new_tokens": 100, "vllm_cfg": {"tensor_parallel_size": 1, "max_model_len": 100}},
        ),
    ],
)
def test_later_sources_win(site: LaunchSite, sweep: str, words: list[str], expected: Json) -> None:
    site.write("sweep.yaml", f"generation.{sweep}\n")
    found = tree(site.plan(*SWEEP, *words, MODEL))["generation"]
    assert {key: found[key] for key in expected} == expected


def test_a_key_that_is_swept_in_vain_is_warned_about(site: LaunchSite) -> None:
    (warning,) = site.plan(*SWEEP, "generation.temperature=1", MODEL).warnings
    assert "generation.temperature" in warning and "sweep" in warning


def test_flags_set_the_request_the_config_and_the_variable_alike(site: LaunchSite) -> None:
    """B10: --gpus did not change GPUS_PER_NODE, and jobs aborted or got the wrong number."""
    site.write("sweep.yaml", "cluster.num_nodes: [3]\n")
    planned = site.plan(*SWEEP, "--gpus", "4", "--nodes", "2", MODEL)
    spec = planned.launch.jobs[0].spec
    assert spec.gpus_per_node == tree(planned)["cluster"]["gpus_per_node"] == 4
    assert spec.nodes == tree(planned)["cluster"]["num_nodes"] == 2
    assert spec.environment["GPUS_PER_NODE"] == "4"


def test_each_combination_gets_the_resources_of_its_own_config(site: LaunchSite) -> None:
    site.write("sweep.yaml", "cluster.gpus_per_node: [1, 2]\n")
    assert [job.spec.gpus_per_node for job in site.plan(*SWEEP, MODEL).launch.jobs] == [1, 2]


def test_resources_that_neither_flags_nor_config_give_are_warned_about(site: LaunchSite) -> None:
    site.write("bare.yaml", "generation: {model_name: m}\ndata: {dataset_name: openai/gsm8k}\ncluster:\n")
    planned = site.plan("--config", "bare.yaml")
    assert (planned.launch.nodes, planned.launch.gpus, len(planned.warnings)) == (1, 8, 2)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([MODEL, "generation.vllm_cfg.tensor_parallel_size=16"], r"16 GPUs, .* 1 x 8"),
        ([], "generation.model_name is None"),
    ],
)
def test_an_engine_larger_than_the_job_or_no_model_is_refused(site: LaunchSite, words: list[str], problem: str) -> None:
    with pytest.raises(OperatorError, match=problem):
        site.plan(*words)


def test_the_checkpoint_of_the_flags_is_the_model(site: LaunchSite) -> None:
    planned = site.plan(*DCP, MODEL)
    for key in ("generation.model_name", "tokenizer.name"):
        assert find_value(tree(planned), key) == str(site.checkpoints.folder)
    assert any("sets the model" in text for text in planned.warnings)


def test_one_small_job_converts_and_the_evaluations_wait_for_it(site: LaunchSite) -> None:
    """B15: all jobs of a sweep held their GPUs while they waited for one conversion."""
    planned = site.plan(*DCP, *SWEEP).launch
    first, *others = planned.jobs
    assert (first.spec.gpus_per_node, first.spec.nodes, first.spec.chain) == (0, 1, False)
    step = site.root / "step_170"
    flags = ("--dcp-ckpt-path", str(step / "policy/weights"), "--dcp-config", str(step / "config.yaml"))
    assert first.spec.command == ("convert", *flags)
    assert [job.after for job in others] == [(first.spec.name,)] * 2
    site.checkpoints.is_converted = True
    cached = site.plan(*DCP, *SWEEP)
    assert cached.cached and len(cached.launch.jobs) == 2 and cached.launch.content == planned.content


def test_jobs_of_different_launches_have_different_names_and_folders(site: LaunchSite) -> None:
    """B11: calls without --jobname waited for each other and shared a log folder."""
    one, two = (site.plan(MODEL, launch_id=name).launch for name in ("one", "two"))
    assert one.jobs[0].spec.name != two.jobs[0].spec.name and one.folder != two.folder
    # The content is that of what is evaluated, and does not depend on how it runs.
    assert (
        one.content == two.content == site.plan(MODEL, "--jobs", "4", "--gpus", "2", "--time", "1:0:0").launch.content
    )
    assert site.plan(MODEL, "generation.temperature=0.1").launch.content != one.content


def test_the_jobs_of_a_combination_share_its_output(site: LaunchSite) -> None:
    planned = site.plan("--jobs", "3", MODEL)
    assert [job.spec.command[-1] for job in planned.launch.jobs] == ["shard=1/3", "shard=2/3", "shard=3/3"]
    assert len({job.spec.command[1] for job in planned.launch.jobs}) == 1
    assert not site.plan(MODEL).launch.jobs[0].spec.command[-1].startswith("shard")
    assert tree(planned)["output_dir"] == str(planned.launch.combinations[0].run)


def test_combinations_do_not_share_a_save_path(site: LaunchSite) -> None:
    planned = site.plan(*SWEEP, MODEL, "eval.save_path=results/mine")
    paths = [tree(planned, number)["eval"]["save_path"] for number in (0, 1)]
    assert paths == ["results/mine/eval_sweep_1", "results/mine/eval_sweep_2"]


def test_different_configs_of_flag_and_sweep_are_refused_in_the_original_words(site: LaunchSite) -> None:
    site.write("sweep.yaml", "config_path: configs/eval.yaml\ngeneration.temperature: [0.6]\n")
    with pytest.raises(OperatorError) as raised:
        site.plan(*SWEEP, "--config", "configs/eval_custom.yaml", MODEL)
    assert str(raised.value) == (
        "AssertionError: Command line config 'configs/eval_custom.yaml' does not match sweep config config_path "
        "'configs/eval.yaml'. Please ensure consistency."
    )


def test_the_config_is_that_of_the_sweep_or_the_flag_or_the_shipped_one(site: LaunchSite) -> None:
    site.write("sweep.yaml", "config_path: mine.yaml\n")
    assert tree(site.plan(*SWEEP, MODEL))["generation"]["temperature"] == 0.3
    site.write("sweep.yaml", "config_path: ./examples/configs/eval.yaml\n")
    default = site.root / "examples/configs/eval.yaml"
    assert site.plan(*SWEEP, "--config", "examples/configs/eval.yaml", MODEL).launch.config == default
    default.unlink()
    planned = site.plan(MODEL)
    assert (planned.launch.config.name, planned.launch.gpus, planned.warnings) == ("nemo_rl_eval.yaml", 8, [])


def test_secrets_are_in_the_config_of_the_job_only(site: LaunchSite) -> None:
    planned = site.plan(MODEL, "+generation.api_key=sk-1", "data.dataset_key=train")
    assert "sk-1" not in planned.launch.model_dump_json()
    assert tree(planned)["generation"]["api_key"] == "sk-1"
    assert planned.launch.combinations[0].parameters["data.dataset_key"] == "train"


def choose(site: LaunchSite, *words: str, is_converted: bool = False) -> ModelChoice:
    checkpoints = Checkpoints(site.root / "cache", is_converted=is_converted)
    return choose_model(read_arguments(words, {})[0], checkpoints, "token")


def test_a_checkpoint_is_converted_into_the_cache_or_the_given_folder(site: LaunchSite) -> None:
    choice = choose(site, *DCP)
    assert choice.model == site.root / "cache/step_170_0123456789abcdef"
    assert choice.conversion and choice.conversion.hf_ckpt_path == choice.model
    assert choice.conversion.dcp_ckpt_path == site.root / "step_170/policy/weights"
    given = choose(site, *DCP, "--hf-ckpt-path", "my model")
    assert given.model == site.root / "my model"
    assert given.conversion and given.conversion.requested_path == given.model


def test_a_link_and_a_trailing_slash_do_not_make_another_checkpoint(site: LaunchSite) -> None:
    """B16: paths were not resolved."""
    (site.root / "latest").symlink_to("step_170")
    flags = ("--dcp-ckpt-path", "latest/policy/../policy/weights", "--dcp-config", "latest/config.yaml")
    assert choose(site, *flags).conversion == choose(site, *DCP).conversion


def test_without_conversion_a_converted_checkpoint_is_used(site: LaunchSite) -> None:
    site.write("hf/config.json", "")
    assert choose(site, "--skip-conversion", "--hf-ckpt-path", "hf") == ModelChoice(site.root / "hf")
    assert choose(site, *DCP, "--skip-conversion", is_converted=True).cached


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([*DCP, "--skip-conversion"], "no conversion"),
        (DCP[:2], "requires --dcp-config"),
        (DCP[2:], "--dcp-config .*--dcp-ckpt-path"),
        (["--force-conversion"], "--force-conversion has no effect"),
        (["--hf-ckpt-path", "x"], "--hf-ckpt-path requires --dcp-ckpt-path"),
        (["--skip-conversion"], "--skip-conversion requires --hf-ckpt-path"),
        (["--skip-conversion", "--hf-ckpt-path", "absent"], "has no config.json"),
        ([*DCP, "--skip-conversion", "--force-conversion"], "contradict each other"),
        (["--dcp-ckpt-path", "absent", *DCP[2:]], "absent does not"),
        (["--dcp-ckpt-path", "", *DCP[2:]], "a path is empty"),
    ],
)
def test_flags_that_contradict_each_other_are_refused(site: LaunchSite, words: list[str], problem: str) -> None:
    with pytest.raises(OperatorError, match=problem):
        choose(site, *words)


TREE: dict[str, Any] = {
    "generation": {"model_name": "m", "temperature": 0.0},
    "tokenizer": {"name": "${generation.model_name}"},
}


def test_any_value_arrives_in_the_job_as_it_was_given(tmp_path: Path) -> None:
    """B5: a quote, a space or $(...) in a value was expanded on the login node, or broke the command."""
    rng = random.Random(1)
    alphabet = "${}\\'\"\n\t :#-[],&*!|>%@`ab1.\r\x85é🎉"
    values: list[Any] = ["".join(rng.choice(alphabet) for _ in range(rng.randint(0, 10))) for _ in range(300)]
    values += ["$(touch x)", "${x}", "\\${x}", "\\\\${oc.env:HOME}", "`id`; rm", "a, b", "\u2028", "007", "1e-5", "yes"]
    values += [1e-5, None, True, [], {}, [[1, [None]], {"a": "${b}"}], -0.0, 10**20]
    settings = [Setting("generation.stop", values, adds=True), Setting("generation.model_name", "$(x) ${y}")]
    (tmp_path / "eval.yaml").write_text(as_yaml(merge(TREE, settings, "test")))
    found = OmegaConf.to_container(load_tree(tmp_path / "eval.yaml"), resolve=True)  # as `ng_eval` inside the job
    assert isinstance(found, dict)
    assert found["generation"]["stop"] == values
    assert found["tokenizer"]["name"] == "$(x) ${y}"  # a reference to a value that overrides the config


@pytest.mark.parametrize(
    ("key", "adds", "problem"),
    [
        ("generation.temprature", False, "did you mean 'generation.temperature'"),
        ("qos", False, "unknown key 'qos'"),
        ("generation.temperature.x", False, "unknown key"),
        ("generation.temperature.x", True, r"generation.temperature is .* 0.0; set generation.temperature"),
    ],
)
def test_a_key_that_nothing_reads_is_refused(key: str, adds: bool, problem: str) -> None:
    with pytest.raises(OperatorError, match=problem):
        merge(TREE, [Setting(key, 1, adds)], "test")


@pytest.mark.parametrize(
    ("key", "adds"),
    [
        ("mine.x", True),
        ("data.dataset_key", False),
        ("generation.vllm_cfg.tensor_parallel_size", False),
        ("cluster.num_nodes", False),  # B8: an empty `cluster:` ended with an AttributeError
    ],
)
def test_a_known_or_added_key_need_not_be_in_the_config(key: str, adds: bool) -> None:
    assert find_value(merge({**TREE, "cluster": None}, [Setting(key, 1, adds)], "test"), key) == 1


@pytest.mark.parametrize(
    ("text", "problem"),
    [("", "is empty"), ("a: [", "cannot be read as YAML"), ("- 1", "contains a list"), (None, "does not exist")],
)
def test_a_config_that_cannot_be_read_is_refused(tmp_path: Path, text: str | None, problem: str) -> None:
    """B8: a missing or unparsable config was only warned about and read as an empty one."""
    if text is not None:
        (tmp_path / "eval.yaml").write_text(text)
    with pytest.raises(OperatorError, match=problem):
        read_config(tmp_path / "eval.yaml")


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("generation.temperature", "hot", "generation.temperature"),
        ("eval.num_tests_per_prompt", 4, "all responses are the same"),
        ("data.dataset_name", "openai/gsm9k", "did you mean 'openai/gsm8k'"),
    ],
)
def test_what_the_job_would_refuse_is_refused_before_the_submission(key: str, value: Any, problem: str) -> None:
    settings = [Setting("generation.model_name", "m"), Setting(key, value)]
    with pytest.raises(OperatorError, match=problem):
        validate(merge(yaml.safe_load(CONFIG), settings, "eval"), "eval")


def test_a_config_of_ng_eval_works_too() -> None:
    validate(merge({"model": "builtin", "environments": ["grl_sokoban"]}, [Setting("num_repeats", 4)], "eval"), "eval")
