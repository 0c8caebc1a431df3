from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from rollyard.launchers.slurm.launch.launch_planner import Planned
from rollyard.records.errors import OperatorError
from rollyard.records.types import Json
from tests.support.launches import MODEL, LaunchSite


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


def test_a_forced_conversion_passes_the_launch_as_its_token(site: LaunchSite) -> None:
    """B4: every job of a sweep converted again, even while another one was reading."""
    planned = site.plan(*DCP, "--force-conversion", launch_id="mine")
    assert planned.launch.jobs[0].spec.command[-2:] == ("--force-token", "mine")


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


def test_the_jobs_of_a_combination_share_its_output_as_different_workers(site: LaunchSite) -> None:
    planned = site.plan("--jobs", "3", MODEL)
    assert [job.spec.command[-1] for job in planned.launch.jobs] == ["worker=job-1", "worker=job-2", "worker=job-3"]
    assert len({job.spec.command[1] for job in planned.launch.jobs}) == 1
    assert tree(planned)["output_dir"] == str(planned.launch.combinations[0].run)


def test_only_several_combinations_are_numbered(site: LaunchSite) -> None:
    site.write("sweep.yaml", "generation.temperature: [0.6, 0.8]\n")
    assert [one.name for one in site.plan(MODEL).launch.combinations] == ["eval"]
    names = [one.name for one in site.plan("--sweep", "sweep.yaml", "--jobname", "mine", MODEL).launch.combinations]
    assert names == ["mine_sweep_1", "mine_sweep_2"]


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


@pytest.mark.parametrize("words", [["--config", "absent.yaml"], ["--sweep", "absent.yaml"]])
def test_a_missing_file_is_refused(site: LaunchSite, words: list[str]) -> None:
    """B8: it was only warned about, and a job was submitted without it."""
    with pytest.raises(OperatorError, match=r"absent\.yaml"):
        site.plan(*words, MODEL)


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
