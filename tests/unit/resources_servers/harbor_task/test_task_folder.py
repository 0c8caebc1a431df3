"""Task folders: links that lead outside, invalid configs and unsupported requirements are refused by name."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from rollyard.records.errors import OperatorError
from rollyard.resources_servers.harbor_task.dockerfile import Build, Copy, RunInstruction, UnsupportedTask, read_build
from rollyard.resources_servers.harbor_task.harbor_box import read_reward
from rollyard.resources_servers.harbor_task.task_folder import EXAMPLES, HarborSettings, Host, load_folder, load_tasks
from rollyard.services.sandbox.container_box import ContainerBoxes
from rollyard.services.sandbox.shell_box import NamespaceBoxes
from tests.unit.resources_servers.harbor_task.folders import HOST, load, write_task


def refusal(folder: Path) -> str:
    with pytest.raises(UnsupportedTask) as raised:
        load(folder)
    return str(raised.value)


def test_a_task_is_loaded_with_its_limits(tmp_path: Path) -> None:
    config = '[agent]\ntimeout_sec = 9\n[environment]\nmemory = "2G"\nstorage_mb = 10\n[unknown]\nkey = 1\n'
    task = load(write_task(tmp_path, config=config))
    assert task.instruction == "Create the file done." and task.place.build and task.place.build.workdir == "/app"
    assert (task.config.agent.timeout_sec, task.config.memory_mb, task.config.storage_mb) == (9.0, 2048, 10)


@pytest.mark.parametrize("part", ["environment", "tests", "solution"])
@pytest.mark.parametrize("target", ["/etc/passwd", "../../outside", "../instruction.md", "../../task/task.toml"])
def test_a_link_that_leads_out_of_its_part_is_refused(tmp_path: Path, part: str, target: str) -> None:
    folder = write_task(tmp_path, files={f"{part}/sub/file": ""})
    (tmp_path / "outside").touch()
    (folder / part / "link").symlink_to(target)
    assert re.search(rf"{part}/link .*{re.escape(target)}", refusal(folder))


def test_a_part_that_is_missing_or_cannot_be_read_as_a_plain_file_is_named(tmp_path: Path) -> None:
    for part in ("instruction.md", "task.toml", "environment", "tests", "solution"):
        folder = write_task(tmp_path, name=f"link_{part}")
        (folder / part).rename(tmp_path / f"moved_{part}")
        (folder / part).symlink_to(tmp_path / f"moved_{part}")
        assert f"{part} is a link" in refusal(folder)
    for part in ("instruction.md", "environment/Dockerfile", "tests/test.sh"):
        folder = write_task(tmp_path, name=f"without_{part[:5]}")
        (folder / part).unlink()
        assert part.rpartition("/")[2] in refusal(folder) and "missing" in refusal(folder)
    folder = write_task(tmp_path)
    (folder / "instruction.md").write_bytes(b"\xff")
    assert "instruction.md is not UTF-8" in refusal(folder)
    os.mkfifo(folder / "tests" / "pipe")
    assert "tests/pipe" in refusal(folder)


def test_the_digest_depends_on_every_file_and_a_link_within_its_part_is_kept(tmp_path: Path) -> None:
    folder = write_task(tmp_path, files={"environment/sub/file": "x"})
    digests = [load(folder).digest, load(folder).digest]
    (folder / "environment" / "link").symlink_to("sub/file")
    digests.append(load(folder).digest)
    (folder / "tests" / "test.sh").write_text("exit 0")
    digests.append(load(folder).digest)
    assert digests[0] == digests[1] and len({*digests}) == 3
    (folder / "tests" / "a").symlink_to("b")
    (folder / "tests" / "b").symlink_to("a")
    assert load(folder).name == "task"


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
        ('[[steps]]\nname = "a"', "instruction.md is missing in a"),
        ('[[steps]]\nname = "../a"', "steps.0.name"),
        ('[[steps]]\nname = "a"\n[[steps]]\nname = "A"', "two steps have the same name"),
        ('[[steps]]\nname = "a"\n[steps.agent]\nuser = "me"', "steps.a.agent.user = 'me': a box has one user, root"),
        ('[[environment.mcp_servers]]\nname = "a"', "environment.mcp_servers"),
        ('[environment.healthcheck]\ncommand = "a"\nretries = 0', "environment.healthcheck.retries"),
        ('[verifier.environment.healthcheck]\ncommand = "a"', "verifier.environment.healthcheck"),
        ("[verifier.environment]\ngpus = 1", "verifier.environment.gpus = 1"),
        ('[verifier]\nenvironment_mode = "shared"\n[verifier.environment]\n', "contradicts verifier.environment"),
        ('[verifier]\nnetwork_mode = "public"', "verifier.network_mode = 'public'"),
        ('[environment]\nnetwork_mode = "anything"', "environment.network_mode"),
        ('[[verifier.collect]]\ncommand = "true"\nservice = "db"', "verifier.collect.service = 'db'"),
        ('artifacts = ["../x"]', "artifacts: ../x: expected an absolute path"),
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


def test_a_folder_of_tasks_is_divided_into_playable_and_refused_ones(tmp_path: Path) -> None:
    write_task(tmp_path, name="good")
    write_task(tmp_path, name="bad", dockerfile="FROM")
    (tmp_path / "notes").mkdir()
    tasks = load_tasks(HarborSettings(tasks=tmp_path, accept_images=("debian:*",)), NamespaceBoxes.lacks)
    assert set(tasks.playable) == {"good"} and set(tasks.refused) == {"bad"}
    assert set(
        load_tasks(HarborSettings(tasks=tmp_path / "good", accept_images=("debian:*",)), NamespaceBoxes.lacks).playable
    ) == {"good"}


@pytest.mark.parametrize("path", ["/no/such/folder", "/usr/share"])
def test_a_folder_without_tasks_stops_the_start(path: str) -> None:
    with pytest.raises(OperatorError, match=path):
        load_tasks(HarborSettings(tasks=Path(path)), NamespaceBoxes.lacks)


def test_tasks_whose_tests_the_model_could_read_stop_the_start(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks")
    with pytest.raises(OperatorError, match=re.escape(str(tmp_path / "tasks"))):
        load_tasks(HarborSettings(tasks=tmp_path / "tasks", host_paths=(tmp_path,)), NamespaceBoxes.lacks)
    with pytest.raises(OperatorError, match="host_paths: nowhere"):
        load_tasks(HarborSettings(tasks=tmp_path / "tasks", host_paths=(Path("nowhere"),)), NamespaceBoxes.lacks)


def test_the_example_tasks_can_be_played() -> None:
    tasks = load_tasks(HarborSettings(tasks=EXAMPLES, accept_images=("debian:*",)), NamespaceBoxes.lacks)
    assert set(tasks.playable) == {"count_words", "fix_script"} and not tasks.refused


NO_OBJECT = "not an object of finite numbers"


@pytest.mark.parametrize(
    ("json_file", "text_file", "reward", "problem"),
    [
        (None, b"1\n", 1.0, ""),
        (None, b" 0.25 ", 0.25, ""),
        (b'{"reward": 0.5, "speed": 9}', b"1", 0.5, ""),
        (b'{"a": 1, "b": 0}', None, 0.5, ""),
        (b"1", None, 1.0, ""),
        (None, None, 0.0, "the tests wrote no reward"),
        *((None, text, 0.0, "not a number") for text in (b"", b"\xff\xff")),
        (None, b"nan", 0.0, "not a finite number"),
        (b"{", b"1", 0.0, "reward.json is not JSON"),
        (b'{"reward": 1e999}', None, 0.0, ""),
        *(
            (text, None, 0.0, NO_OBJECT)
            for text in (b"{}", *(b'{"reward": %s}' % odd for odd in (b'"1"', b"true", b"null")))
        ),
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


def build(text: str, *accepted: str) -> Build:
    return read_build(text, HOST, accepted)


def after_from(text: str) -> Build:
    return build(f"FROM debian:12\n{text}\n")


def test_comments_lower_case_and_instructions_without_effect_under_harbor_are_ignored() -> None:
    assert after_from('CMD ["x"]\nENTRYPOINT []\nEXPOSE 80\nLABEL a=b\nHEALTHCHECK NONE').steps == []
    found = build("# syntax=docker/dockerfile:1\n\nfrom debian:12\n# RUN apt-get\nworkdir /app")
    assert found.workdir == "/app" and found.steps == []


def test_the_working_directory_is_relative_to_the_one_before_and_variables_are_replaced() -> None:
    found = after_from("WORKDIR /app\nWORKDIR src\nWORKDIR ../tests")
    assert found.workdir == "/app/tests" and found.folders == ["/app", "/app/src", "/app/tests"]
    variables = "ARG NAME=x\nENV ROOT=/data FILE=${NAME:-y}.txt\nENV OLD value with spaces\n"
    found = after_from(variables + "WORKDIR $ROOT/${NONE:-sub}\nENV A=$PATH:/x")
    assert found.workdir == "/data/sub" and found.env["A"] == f"{found.env['PATH']}:/x"
    assert found.env["FILE"] == "x.txt" and found.env["OLD"] == "value with spaces"
    quoted = {'A="two words"': "two words", "A=two\\ words": "two words", "A=\\$HOME": "$HOME", "A 'x y'": "x y"}
    assert {text: after_from(f"ENV {text}").env["A"] for text in quoted} == quoted


def test_a_command_runs_with_the_shell_directory_and_variables_of_its_place() -> None:
    found = after_from(
        'RUN a\nSHELL ["/bin/bash", "-ec"]\nWORKDIR /app\nENV X=1\nRUN b && \\\n  # a comment\n  c\nRUN ["d", "e f"]'
    )
    first, second, third = [step for step in found.steps if isinstance(step, RunInstruction)]
    assert first.argv == ("/bin/sh", "-c", "a") and first.cwd == "/" and "X" not in first.env
    assert second.argv == ("/bin/bash", "-ec", "b &&   c") or second.argv[:2] == ("/bin/bash", "-ec")
    assert second.cwd == "/app" and second.env["X"] == "1"
    assert third.argv == ("d", "e f")


def test_sources_and_target_of_a_copy_are_read() -> None:
    found = after_from(
        'WORKDIR /app\nCOPY a.txt b.txt dir/\nCOPY --chown=root --chmod=755 run.sh /bin2/run\nADD ["a b", "."]'
    )
    first, second, third = [step for step in found.steps if isinstance(step, Copy)]
    assert (first.sources, first.target, first.into_folder) == (("a.txt", "b.txt"), "/app/dir", True)
    assert (second.target, second.into_folder, second.mode) == ("/bin2/run", False, 0o755)
    assert (third.sources, third.target, third.into_folder) == (("a b",), "/app", True)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "has no FROM instruction"),
        ("FROM", "line 1: `FROM`: it has no arguments"),
        ("FROM $NONE", "it has no arguments after its variables"),
        ("FROM alpine:3", "`FROM alpine:3`: this image is not available"),
        ("FROM debian:11", "set accept_images: ['debian:11']"),
        ("RUN x", "expected FROM before it"),
        ("FROM debian:12 AS a\nFROM debian:12", "line 2: `FROM debian:12`: builds with several stages"),
        ("FROM debian:12\nSHELL []", "line 2: `SHELL []`: the list is empty"),
        ("FROM debian:12\nSHELL bash", "expected a list"),
        ('FROM debian:12\nSHELL ["bash", 1]', "expected a list of strings"),
        ("FROM debian:12\nRUN", "`RUN`: it has no arguments"),
        ("FROM debian:12\nRUN []", "the list is empty"),
        ("FROM debian:12\nRUN apt-get update && \\\n apt-get install x", "line 2: `RUN apt-get update"),
        ("FROM debian:12\nRUN pip install numpy", "`pip` needs a network"),
        ("FROM debian:12\nRUN set -e; python3 -m pip install x", "`python3 -m pip` needs a network"),
        ("FROM debian:12\nRUN X=1 sudo curl https://a.b | sh", "`curl` needs a network"),
        ('FROM debian:12\nRUN ["git", "clone", "x"]', "`git clone` needs a network"),
        ("FROM debian:12\nRUN --mount=type=cache,target=/x make", "--mount is not supported"),
        ("FROM debian:12\nRUN <<EOF\nx\nEOF", "here-documents are not supported"),
        ("FROM debian:12\nCOPY a", "expected a source and a target"),
        ("FROM debian:12\nCOPY --from=builder a b", "--from is not supported"),
        ("FROM debian:12\nCOPY --chmod=u+x a b", "octal"),
        ("FROM debian:12\nCOPY a /usr/local/bin/", "/usr/local/bin is read-only in a box"),
        ("FROM debian:12\nWORKDIR /bin/../usr", "/usr is read-only"),
        ("FROM debian:12\nADD https://a.b/c /c", "a box has no network"),
        ("FROM debian:12\nADD a.tar.gz /", "archives are not extracted"),
        ("FROM debian:12\nUSER nobody", "a box has one user, root"),
        ('FROM debian:12\nENTRYPOINT ["/start.sh"]', "a box does not run it"),
        ("FROM debian:12\nENV A", "expected NAME=value"),
        ("FROM debian:12\nENV =x y", "expected NAME=value"),
        ("FROM debian:12\nENV A=\0", "contains a NUL character"),
        ("FROM debian:12\nENV A='b", "No closing quotation"),
        ("FROM debian:12\nONBUILD RUN x", "this instruction is not supported"),
        ("FROM debian:12\nFRUM x", "`FRUM x`: this instruction is not supported"),
        ("# escape=`\nFROM debian:12", "escape character"),
        ("FROM debian:12\nRUN x \\", None),
    ],
)
def test_what_cannot_be_done_is_refused_with_its_line(text: str, problem: str | None) -> None:
    if problem is None:
        assert len(build(text).steps) == 1
        return
    with pytest.raises(UnsupportedTask) as raised:
        build(text)
    assert problem in str(raised.value) and "environment/Dockerfile" in str(raised.value)


def test_only_images_that_are_this_host_are_replaced() -> None:
    same = ("debian:12", "debian:bookworm-slim", "docker.io/library/debian:12", "debian:12@sha256:00", "python:3.11")
    other = ("debian", "debian:11", "ubuntu:24.04", "python:3.12", "python:3.11-alpine", "example.com/debian:12")
    for image in (*same, "python:3.11-slim-bookworm", *other):
        assert HOST.replaces(image, ()) is (image not in other)
        assert HOST.replaces(image, (f"{image[:6]}*",))


def test_words_that_are_not_commands_need_no_network() -> None:
    commands = ("echo apt-get", "cat pip.txt", "curl -s http://localhost:8000", "grep curl x", "make uv=1", "./pip")
    assert len(after_from("\n".join(f"RUN {command}" for command in commands)).steps) == len(commands)


@pytest.mark.parametrize(
    ("config", "has_network", "expected"),
    [
        ("", True, True),
        ('[environment]\nnetwork_mode = "public"', True, True),
        ('[environment]\nnetwork_mode = "no-network"', True, False),
        ("", False, False),
    ],
)
def test_a_task_without_a_network_policy_gets_the_engines_network_if_there_is_one(
    tmp_path: Path, config: str, has_network: bool, expected: bool
) -> None:
    folder = write_task(tmp_path, config=config)
    host = Host(HOST, (), ContainerBoxes.lacks, has_network=has_network)
    assert load_folder(folder, host).place.network is expected
