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
from rollyard.launchers.slurm.sweep import Setting
from rollyard.records.errors import OperatorError
from rollyard.records.types import Json
from tests.support.launches import CONFIG, MODEL, Checkpoints, LaunchSite


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LaunchSite:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights").mkdir()
    (tmp_path / "config.yaml").touch()
    return LaunchSite(tmp_path)


DCP = ("--dcp-ckpt-path", "weights", "--dcp-config", "config.yaml")


def tree(planned: Planned, number: int = 0) -> Json:
    found: Json = yaml.safe_load(planned.files[planned.launch.combinations[number].config])
    return found


def test_later_sources_win_config_sweep_command_line_launcher(site: LaunchSite) -> None:
    site.write("sweep.yaml", "generation.temperature: [0.6]\ngeneration.top_p: [0.9]\ncluster.num_nodes: [3]\n")
    planned = site.plan("--sweep", "sweep.yaml", "--nodes", "2", "generation.top_p=0.5", MODEL)
    found = tree(planned)
    assert found["generation"]["temperature"] == 0.6  # sweep over config
    assert found["generation"]["top_p"] == 0.5  # command line over sweep
    assert found["cluster"]["num_nodes"] == planned.launch.jobs[0].spec.nodes == 2  # flag over sweep
    assert found["generation"]["max_new_tokens"] == 2048


def test_a_mapping_is_merged_into_that_of_the_config(site: LaunchSite) -> None:
    """As in Hydra. Replacing the section would silently drop the engine's settings."""
    site.write("sweep.yaml", "generation: [{temperature: 0.6, vllm_cfg: {max_model_len: 100}}]\n")
    found = tree(site.plan("--sweep", "sweep.yaml", MODEL))["generation"]
    assert (found["temperature"], found["max_new_tokens"]) == (0.6, 100)
    assert found["vllm_cfg"] == {"tensor_parallel_size": 1, "max_model_len": 100}


def test_a_key_that_is_swept_in_vain_is_warned_about(site: LaunchSite) -> None:
    site.write("sweep.yaml", "generation.temperature: [0.6, 0.8]\n")
    planned = site.plan("--sweep", "sweep.yaml", "generation.temperature=1", MODEL)
    (warning,) = planned.warnings
    assert "generation.temperature" in warning and "sweep" in warning


def test_gpus_set_the_request_the_config_and_the_variable_alike(site: LaunchSite) -> None:
    """B10: --gpus did not change GPUS_PER_NODE, and jobs aborted or got the wrong number."""
    planned = site.plan("--gpus", "4", MODEL)
    spec = planned.launch.jobs[0].spec
    assert spec.gpus_per_node == tree(planned)["cluster"]["gpus_per_node"] == 4
    assert spec.environment["GPUS_PER_NODE"] == "4"


def test_each_combination_gets_the_resources_of_its_own_config(site: LaunchSite) -> None:
    site.write("sweep.yaml", "cluster.gpus_per_node: [1, 2]\n")
    planned = site.plan("--sweep", "sweep.yaml", MODEL)
    assert [job.spec.gpus_per_node for job in planned.launch.jobs] == [1, 2]


def test_resources_that_neither_flags_nor_config_give_are_warned_about(site: LaunchSite) -> None:
    site.write("bare.yaml", "generation: {model_name: m}\ndata: {dataset_name: openai/gsm8k}\ncluster:\n")
    planned = site.plan("--config", "bare.yaml")
    assert (planned.launch.nodes, planned.launch.gpus) == (1, 8)
    assert len(planned.warnings) == 2


def test_an_engine_that_needs_more_gpus_than_the_job_has_is_refused(site: LaunchSite) -> None:
    with pytest.raises(OperatorError, match=r"16 GPUs, .* 1 x 8"):
        site.plan(MODEL, "generation.vllm_cfg.tensor_parallel_size=16")


def test_no_model_anywhere_is_refused_before_the_submission(site: LaunchSite) -> None:
    with pytest.raises(OperatorError, match=r"generation.model_name is None"):
        site.plan()


def test_the_checkpoint_of_the_flags_is_the_model(site: LaunchSite) -> None:
    planned = site.plan(*DCP, MODEL)
    assert tree(planned)["generation"]["model_name"] == str(site.checkpoints.folder)
    assert tree(planned)["tokenizer"]["name"] == str(site.checkpoints.folder)
    assert any("sets the model" in text for text in planned.warnings)


def test_one_small_job_converts_and_the_evaluations_wait_for_it(site: LaunchSite) -> None:
    """B15: all jobs of a sweep held their GPUs while they waited for one conversion."""
    site.write("sweep.yaml", "generation.temperature: [0.6, 0.8]\n")
    first, *others = site.plan(*DCP, "--sweep", "sweep.yaml").launch.jobs
    assert (first.spec.gpus_per_node, first.spec.nodes, first.spec.chain) == (0, 1, False)
    flags = ("--dcp-ckpt-path", str(site.root / "weights"), "--dcp-config", str(site.root / "config.yaml"))
    assert first.spec.command == ("convert", *flags)
    assert [job.after for job in others] == [(first.spec.name,)] * 2


def test_a_cached_conversion_needs_no_job(site: LaunchSite) -> None:
    site.checkpoints.is_converted = True
    planned = site.plan(*DCP)
    assert planned.cached and [job.combination for job in planned.launch.jobs] == ["eval"]


def test_jobs_of_different_launches_have_different_names_and_folders(site: LaunchSite) -> None:
    """B11: calls without --jobname waited for each other and shared a log folder."""
    one, two = (site.plan(MODEL, launch_id=name).launch for name in ("one", "two"))
    assert one.jobs[0].spec.name != two.jobs[0].spec.name
    assert one.folder != two.folder
    assert one.content == two.content


def test_the_jobs_of_a_combination_share_its_output(site: LaunchSite) -> None:
    planned = site.plan("--jobs", "3", MODEL)
    assert [job.spec.command[-1] for job in planned.launch.jobs] == ["shard=1/3", "shard=2/3", "shard=3/3"]
    assert len({job.spec.command[1] for job in planned.launch.jobs}) == 1
    assert not site.plan(MODEL).launch.jobs[0].spec.command[-1].startswith("shard")
    assert tree(planned)["output_dir"] == str(planned.launch.combinations[0].run)


def test_combinations_do_not_share_a_save_path(site: LaunchSite) -> None:
    site.write("sweep.yaml", "generation.temperature: [0.6, 0.8]\n")
    planned = site.plan("--sweep", "sweep.yaml", MODEL, "eval.save_path=results/mine")
    paths = [tree(planned, number)["eval"]["save_path"] for number in (0, 1)]
    assert paths == ["results/mine/eval_sweep_1", "results/mine/eval_sweep_2"]


def test_different_configs_of_flag_and_sweep_are_refused_in_the_original_words(site: LaunchSite) -> None:
    site.write("sweep.yaml", "config_path: configs/eval.yaml\ngeneration.temperature: [0.6]\n")
    with pytest.raises(OperatorError) as raised:
        site.plan("--sweep", "sweep.yaml", "--config", "configs/eval_custom.yaml", MODEL)
    assert str(raised.value) == (
        "AssertionError: Command line config 'configs/eval_custom.yaml' does not match sweep config config_path "
        "'configs/eval.yaml'. Please ensure consistency."
    )


def test_two_spellings_of_one_config_match(site: LaunchSite) -> None:
    site.write("sweep.yaml", "config_path: ./examples/configs/eval.yaml\n")
    planned = site.plan("--sweep", "sweep.yaml", "--config", "examples/configs/eval.yaml", MODEL)
    assert planned.launch.config == site.root / "examples/configs/eval.yaml"


def test_the_config_of_the_sweep_is_used_without_a_flag(site: LaunchSite) -> None:
    site.write("mine.yaml", "defaults: examples/configs/eval.yaml\ngeneration: {temperature: 0.3}\n")
    site.write("sweep.yaml", "config_path: mine.yaml\n")
    assert tree(site.plan("--sweep", "sweep.yaml", MODEL))["generation"]["temperature"] == 0.3


def test_the_shipped_config_is_the_default_elsewhere(tmp_path: Path) -> None:
    site = LaunchSite(tmp_path)
    (tmp_path / "examples/configs/eval.yaml").unlink()
    planned = site.plan(MODEL)
    assert planned.launch.config.name == "nemo_rl_eval.yaml"
    assert planned.launch.gpus == 8 and not planned.warnings


def test_secrets_are_in_the_config_of_the_job_only(site: LaunchSite) -> None:
    planned = site.plan(MODEL, "+generation.api_key=sk-1", "data.dataset_key=train")
    assert "sk-1" not in planned.launch.model_dump_json()
    assert tree(planned)["generation"]["api_key"] == "sk-1"
    assert planned.launch.combinations[0].parameters["data.dataset_key"] == "train"


def test_a_launch_with_other_values_has_other_content_and_more_jobs_do_not_change_it(site: LaunchSite) -> None:
    first = site.plan(MODEL).launch.content
    assert site.plan(MODEL, "--jobs", "4", "--gpus", "2", "--time", "1:0:0").launch.content == first
    assert site.plan(MODEL, "generation.temperature=0.1").launch.content != first


def test_content_does_not_depend_on_whether_the_checkpoint_is_converted_yet(site: LaunchSite) -> None:
    before = site.plan(*DCP).launch.content
    site.checkpoints.is_converted = True
    assert site.plan(*DCP).launch.content == before


CHECKPOINT = ["--dcp-ckpt-path", "step_170/policy/weights/", "--dcp-config", "step_170/config.yaml"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "step_170/policy/weights").mkdir(parents=True)
    (tmp_path / "step_170/config.yaml").touch()
    monkeypatch.chdir(tmp_path)


def choose(tmp_path: Path, *words: str, is_converted: bool = False) -> ModelChoice:
    checkpoints = Checkpoints(tmp_path / "cache", is_converted=is_converted)
    return choose_model(read_arguments(words, {})[0], checkpoints, "token")


def test_a_checkpoint_is_converted_into_the_cache(tmp_path: Path) -> None:
    choice = choose(tmp_path, *CHECKPOINT)
    assert choice.model == tmp_path / "cache" / "step_170_0123456789abcdef"
    assert choice.conversion and choice.conversion.hf_ckpt_path == choice.model
    assert choice.conversion.dcp_ckpt_path == tmp_path / "step_170/policy/weights"


def test_the_folder_of_the_conversion_can_be_given(tmp_path: Path) -> None:
    choice = choose(tmp_path, *CHECKPOINT, "--hf-ckpt-path", "my model")
    assert choice.model == tmp_path / "my model"
    assert choice.conversion and choice.conversion.requested_path == choice.model


def test_a_link_and_a_trailing_slash_do_not_make_another_checkpoint(tmp_path: Path) -> None:
    """B16: paths were not resolved."""
    (tmp_path / "latest").symlink_to("step_170")
    choice = choose(
        tmp_path, "--dcp-ckpt-path", "latest/policy/../policy/weights", "--dcp-config", "latest/config.yaml"
    )
    assert choice.conversion == choose(tmp_path, *CHECKPOINT).conversion


def test_a_converted_checkpoint_can_be_used_without_its_source(tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").touch()
    assert choose(tmp_path, "--skip-conversion", "--hf-ckpt-path", "hf") == ModelChoice(tmp_path / "hf")


def test_without_conversion_the_cache_must_have_the_checkpoint(tmp_path: Path) -> None:
    assert choose(tmp_path, *CHECKPOINT, "--skip-conversion", is_converted=True).cached
    with pytest.raises(OperatorError, match="no conversion"):
        choose(tmp_path, *CHECKPOINT, "--skip-conversion")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (CHECKPOINT[:2], "requires --dcp-config"),
        (CHECKPOINT[2:], "--dcp-config .*--dcp-ckpt-path"),
        (["--force-conversion"], "--force-conversion has no effect"),
        (["--hf-ckpt-path", "x"], "--hf-ckpt-path requires --dcp-ckpt-path"),
        (["--skip-conversion"], "--skip-conversion requires --hf-ckpt-path"),
        (["--skip-conversion", "--hf-ckpt-path", "absent"], "has no config.json"),
        ([*CHECKPOINT, "--skip-conversion", "--force-conversion"], "contradict each other"),
        (["--dcp-ckpt-path", "absent", *CHECKPOINT[2:]], "absent does not"),
        (["--dcp-ckpt-path", "", *CHECKPOINT[2:]], "a path is empty"),
    ],
)
def test_flags_that_contradict_each_other_are_refused(tmp_path: Path, words: list[str], problem: str) -> None:
    with pytest.raises(OperatorError, match=problem):
        choose(tmp_path, *words)


TREE: dict[str, Any] = {
    "generation": {"model_name": "m", "temperature": 0.0},
    "tokenizer": {"name": "${generation.model_name}"},
}


def read_in_job(path: Path, text: str) -> Any:
    """Read the file as `ng_eval` does inside the job."""
    path.write_text(text)
    return OmegaConf.to_container(load_tree(path), resolve=True)


def test_any_value_arrives_in_the_job_as_it_was_given(tmp_path: Path) -> None:
    """B5: a quote, a space or $(...) in a value was expanded on the login node, or broke the command."""
    rng = random.Random(1)
    alphabet = "${}\\'\"\n\t :#-[],&*!|>%@`ab1.\r\x85é🎉"
    values: list[Any] = ["".join(rng.choice(alphabet) for _ in range(rng.randint(0, 10))) for _ in range(300)]
    values += ["$(touch x)", "${x}", "\\${x}", "\\\\${oc.env:HOME}", "`id`; rm", "a, b", "\u2028", "007", "1e-5", "yes"]
    values += [1e-5, None, True, [], {}, [[1, [None]], {"a": "${b}"}], -0.0, 10**20]
    merged = merge(TREE, [Setting("generation.stop", values, adds=True)], "test")
    found = read_in_job(tmp_path / "eval.yaml", as_yaml(merged))
    assert found["generation"]["stop"] == values


def test_references_of_the_config_are_resolved_with_the_values_that_override_it() -> None:
    merged = merge(TREE, [Setting("generation.model_name", "$(x) ${y}")], "test")
    assert merged["tokenizer"]["name"] == "$(x) ${y}"


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("generation.temprature", "did you mean 'generation.temperature'"),
        ("qos", "unknown key 'qos'"),
        ("generation.temperature.x", "unknown key"),
    ],
)
def test_a_key_that_nothing_reads_is_refused(key: str, problem: str) -> None:
    with pytest.raises(OperatorError, match=problem):
        merge(TREE, [Setting(key, 1)], "test")


def test_a_key_that_nothing_reads_can_be_added() -> None:
    assert merge(TREE, [Setting("mine.x", 1, adds=True)], "test")["mine"] == {"x": 1}


@pytest.mark.parametrize("key", ["data.dataset_key", "generation.vllm_cfg.tensor_parallel_size", "eval.k_value"])
def test_a_known_key_need_not_be_in_the_config(key: str) -> None:
    merge(TREE, [Setting(key, 1)], "test")


def test_a_key_below_a_value_names_the_value() -> None:
    with pytest.raises(OperatorError, match=r"generation.temperature is .* 0.0; set generation.temperature"):
        merge(TREE, [Setting("generation.temperature.x", 1, adds=True)], "test")


def test_a_null_section_counts_as_empty() -> None:
    """B8: an empty `cluster:` ended with an AttributeError."""
    assert merge({**TREE, "cluster": None}, [Setting("cluster.num_nodes", 2)], "test")["cluster"] == {"num_nodes": 2}


@pytest.mark.parametrize(
    ("text", "problem"),
    [("", "is empty"), ("a: [", "cannot be read as YAML"), ("- 1", "contains a list"), (None, "does not exist")],
)
def test_a_config_that_cannot_be_read_is_refused(tmp_path: Path, text: str | None, problem: str) -> None:
    """B8: a missing or unparsable config was only warned about and read as an empty one."""
    path = tmp_path / "eval.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(OperatorError, match=problem):
        read_config(path)


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("generation.temperature", "hot", "generation.temperature"),
        ("eval.num_tests_per_prompt", 4, "all responses are the same"),
        ("data.dataset_name", "openai/gsm9k", "did you mean 'openai/gsm8k'"),
    ],
)
def test_what_the_job_would_refuse_is_refused_before_the_submission(
    tmp_path: Path, key: str, value: Any, problem: str
) -> None:
    (tmp_path / "eval.yaml").write_text(CONFIG)
    settings = [Setting("generation.model_name", "m"), Setting(key, value)]
    with pytest.raises(OperatorError, match=problem):
        validate(merge(read_config(tmp_path / "eval.yaml"), settings, "eval"), "eval")


def test_a_config_of_ng_eval_works_too() -> None:
    validate(merge({"model": "builtin", "environments": ["grl_sokoban"]}, [Setting("num_repeats", 4)], "eval"), "eval")
