"""Task folders: links that lead outside, invalid configs and unsupported requirements are refused by name."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from rollyard.records.errors import OperatorError
from rollyard.resources_servers.harbor_task.rewards import read_reward
from rollyard.resources_servers.harbor_task.settings import EXAMPLES, HarborSettings
from rollyard.resources_servers.harbor_task.task_set import load_tasks
from rollyard.resources_servers.harbor_task.unsupported import UnsupportedTask
from tests.unit.resources_servers.harbor_task.folders import load, write_task


def refusal(folder: Path) -> str:
    with pytest.raises(UnsupportedTask) as raised:
        load(folder)
    return str(raised.value)


def test_a_task_is_loaded_with_its_limits(tmp_path: Path) -> None:
    config = '[agent]\ntimeout_sec = 9\n[environment]\nmemory = "2G"\nstorage_mb = 10\n[unknown]\nkey = 1\n'
    task = load(write_task(tmp_path, config=config))
    assert task.instruction == "Create the file done." and task.build.workdir == "/app"
    assert (task.config.agent.timeout_sec, task.config.memory_mb, task.config.storage_mb) == (9.0, 2048, 10)


@pytest.mark.parametrize("part", ["instruction.md", "task.toml", "environment", "tests", "solution"])
def test_a_part_of_the_folder_that_is_a_link_is_refused(tmp_path: Path, part: str) -> None:
    folder = write_task(tmp_path)
    (folder / part).rename(tmp_path / "moved")
    (folder / part).symlink_to(tmp_path / "moved")
    assert f"{part} is a link" in refusal(folder)


@pytest.mark.parametrize("part", ["environment", "tests", "solution"])
@pytest.mark.parametrize("target", ["/etc/passwd", "../../outside", "../tests/test.sh", "../../task/tests"])
def test_a_link_that_leads_out_of_its_part_is_refused(tmp_path: Path, part: str, target: str) -> None:
    folder = write_task(tmp_path, files={f"{part}/sub/file": ""})
    (tmp_path / "outside").touch()
    if part != "tests" or "tests" not in target:
        (folder / part / "link").symlink_to(target)
        assert re.search(rf"{part}/link .*{re.escape(target)}", refusal(folder))


def test_a_link_within_its_part_is_kept(tmp_path: Path) -> None:
    folder = write_task(tmp_path, files={"environment/sub/file": "x"})
    (folder / "environment" / "link").symlink_to("sub/file")
    assert load(folder).digest != load(write_task(tmp_path, name="other", files={"environment/sub/file": "x"})).digest


def test_links_that_form_a_loop_do_not_stop_the_other_tasks(tmp_path: Path) -> None:
    folder = write_task(tmp_path)
    (folder / "tests" / "a").symlink_to("b")
    (folder / "tests" / "b").symlink_to("a")
    assert load(folder).name == "task"


def test_a_file_that_would_block_its_reader_is_refused(tmp_path: Path) -> None:
    folder = write_task(tmp_path)
    os.mkfifo(folder / "tests" / "pipe")
    assert "tests/pipe" in refusal(folder)


@pytest.mark.parametrize("missing", ["instruction.md", "environment/Dockerfile", "tests/test.sh"])
def test_a_missing_file_is_named(tmp_path: Path, missing: str) -> None:
    folder = write_task(tmp_path)
    (folder / missing).unlink()
    assert missing.rpartition("/")[2] in refusal(folder) and "missing" in refusal(folder)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ("[agent", "task.toml is not valid TOML"),
        ('[agent]\ntimeout_sec = "soon"', "agent.timeout_sec"),
        ("[agent]\ntimeout_sec = -1", "agent.timeout_sec"),
        ("agent = 3", "task.toml: agent"),
        ('[environment]\nmemory = "much"', "environment.memory = 'much'"),
        ("[environment]\ngpus = 1", "environment.gpus = 1: a box has no GPU"),
        ("[environment]\nallow_internet = true", "environment.allow_internet = true: a box has no network"),
        ('[environment]\nnetwork_mode = "public"', "environment.network_mode = 'public'"),
        ('[verifier]\nnetwork_mode = "allowlist"', "verifier.network_mode = 'allowlist'"),
        ('[environment]\nos = "windows"', "environment.os = 'windows'"),
        ('[environment.env]\nKEY = "${SECRET}"', "environment.env.KEY"),
        ('[verifier.env]\nKEY = "${SECRET}"', "verifier.env.KEY"),
        ('[agent]\nuser = "me"', "agent.user = 'me'"),
        ('[[steps]]\nname = "a"', "[[steps]]"),
        ('[[environment.mcp_servers]]\nname = "a"', "environment.mcp_servers"),
        ('[environment.healthcheck]\ncommand = "a"', "environment.healthcheck"),
        ("[verifier.environment]\ngpus = 0", "verifier.environment"),
        ('[environment]\nworkdir = "app"', "environment.workdir = 'app': expected an absolute path"),
        ('[environment]\nworkdir = "/x/../usr/src"', "/usr/src is read-only in a box"),
        ("[environment.env]\n'A=B' = 'x'", "environment.env: 'A=B'"),
        ('[verifier.env]\nA = "\\u0000"', "verifier.env: 'A'"),
        ("a = " + "[" * 5000, "task.toml is not valid TOML"),
    ],
)
def test_a_config_that_is_invalid_or_needs_more_than_a_box_is_refused(
    tmp_path: Path, config: str, problem: str
) -> None:
    assert problem in refusal(write_task(tmp_path, config=config))


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"environment/docker-compose.yaml": "services: {}"}, "several containers"),
        ({"environment/.dockerignore": "*"}, ".dockerignore is not supported"),
        ({"tests/test.sh": "set -e\napt-get update\n"}, "tests/test.sh line 2: `apt-get` needs a network"),
        ({"tests/test.sh": "curl -LsSf https://astral.sh/uv/install.sh | sh\n"}, "line 1: `curl`"),
        ({"tests/test.sh": "  uvx -p 3.13 pytest\n"}, "line 1: `uvx`"),
        ({"instruction.md": " \n"}, "instruction.md is empty"),
    ],
)
def test_files_that_a_box_cannot_honour_are_refused(tmp_path: Path, files: dict[str, str], problem: str) -> None:
    assert problem in refusal(write_task(tmp_path, files=files))


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    folder = write_task(tmp_path)
    (folder / "instruction.md").write_bytes(b"\xff")
    assert "instruction.md is not UTF-8" in refusal(folder)


def test_every_change_of_a_file_changes_the_digest(tmp_path: Path) -> None:
    folder = write_task(tmp_path)
    before = load(folder).digest
    assert load(folder).digest == before
    (folder / "tests" / "test.sh").write_text("exit 0")
    assert load(folder).digest != before


def test_a_folder_of_tasks_is_divided_into_playable_and_refused_ones(tmp_path: Path) -> None:
    write_task(tmp_path, name="good")
    write_task(tmp_path, name="bad", dockerfile="FROM")
    (tmp_path / "notes").mkdir()
    tasks = load_tasks(HarborSettings(tasks=tmp_path, accept_images=("debian:*",)))
    assert set(tasks.playable) == {"good"} and set(tasks.refused) == {"bad"}
    assert set(load_tasks(HarborSettings(tasks=tmp_path / "good", accept_images=("debian:*",))).playable) == {"good"}


@pytest.mark.parametrize("path", ["/no/such/folder", "/usr/share"])
def test_a_folder_without_tasks_stops_the_start(path: str) -> None:
    with pytest.raises(OperatorError, match=path):
        load_tasks(HarborSettings(tasks=Path(path)))


def test_tasks_whose_tests_the_model_could_read_stop_the_start(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks")
    with pytest.raises(OperatorError, match=re.escape(str(tmp_path / "tasks"))):
        load_tasks(HarborSettings(tasks=tmp_path / "tasks", host_paths=(tmp_path,)))
    with pytest.raises(OperatorError, match="host_paths: nowhere"):
        load_tasks(HarborSettings(tasks=tmp_path / "tasks", host_paths=(Path("nowhere"),)))


def test_the_example_tasks_can_be_played() -> None:
    tasks = load_tasks(HarborSettings(tasks=EXAMPLES, accept_images=("debian:*",)))
    assert set(tasks.playable) == {"count_words", "fix_script"} and not tasks.refused


@pytest.mark.parametrize(
    ("json_file", "text_file", "reward", "problem"),
    [
        (None, b"1\n", 1.0, ""),
        (None, b" 0.25 ", 0.25, ""),
        (b'{"reward": 0.5, "speed": 9}', b"1", 0.5, ""),
        (b'{"a": 1, "b": 0}', None, 0.5, ""),
        (b"1", None, 1.0, ""),
        (None, None, 0.0, "the tests wrote no reward"),
        (None, b"", 0.0, "not a number"),
        (None, b"nan", 0.0, "not a finite number"),
        (None, b"\xff\xff", 0.0, "not a number"),
        (b"{", b"1", 0.0, "reward.json is not JSON"),
        (b"{}", None, 0.0, "not an object of finite numbers"),
        (b'{"reward": "1"}', None, 0.0, "not an object of finite numbers"),
        (b'{"reward": true}', None, 0.0, "not an object of finite numbers"),
        (b'{"reward": 1e999}', None, 0.0, ""),
        (b'{"reward": null}', None, 0.0, "not an object of finite numbers"),
    ],
)
def test_a_reward_is_read_as_harbor_reads_it_and_a_broken_one_is_0(
    json_file: bytes | None, text_file: bytes | None, reward: float, problem: str
) -> None:
    found = read_reward(json_file, text_file, None)
    assert found.reward == reward and problem in found.problem


def test_the_key_of_the_reward_can_be_chosen() -> None:
    assert read_reward(b'{"reward": 0, "speed": 3}', None, "speed").reward == 3.0
    assert "no key 'size'" in read_reward(b'{"reward": 1}', None, "size").problem
