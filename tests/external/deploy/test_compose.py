"""docker-compose.yml, started by the commands of docs/operation.md with Docker Compose on a real engine."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from rollyard.records.data_files import INSTALLED
from tests.external.deploy.host import CONFINED, TOKEN, USER, Host, confinement, secrets_folder, users_folder
from tests.support.doc_pages import page, sections
from tests.support.stacks import keys_of, read_rows
from tests.support.waiting import eventually

FILE = INSTALLED / "docker-compose.yml"
PARTS = ("head", "policy", "environment", "agent", "viewer")
GSM8K = {"AGENT": "gsm8k_agent", "INPUT": "resources_servers/gsm8k/data/example.jsonl", "OUTPUT": "gsm8k"}


@dataclass(frozen=True)
class Project:
    """The folder of a host in which the compose file is, and its containers."""

    host: Host
    folder: Path

    def compose(self, *arguments: str, **variables: str) -> str:
        return self.host.docker("compose", *arguments, cwd=self.folder, REPEATS="2", **variables)

    def container(self, part: str) -> str:
        return self.compose("ps", "--all", "--quiet", part).strip()

    def ready(self) -> set[str]:
        """The instances of servers that ng_status lists as ready; none if it cannot be asked."""
        command = ["docker", "compose", "exec", "-T", "head", "ng_status", "--json"]
        done = subprocess.run(command, cwd=self.folder, env=self.host.variables, capture_output=True, text=True)
        return {one["process_name"] for one in json.loads(done.stdout or "[]") if one["ready"]}


@pytest.fixture(scope="module")
def project(host: Host, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    folder = tmp_path_factory.mktemp("host")
    shutil.copy(FILE, folder)
    secrets_folder(folder / "secrets")
    users_folder(folder / "results")
    project = Project(host, folder)
    try:
        project.compose("up", "--detach")
        yield project
    finally:
        project.compose("down", "--timeout", "1")


def test_two_environments_are_collected_across_the_containers_into_the_users_files(project: Project) -> None:
    project.compose("wait", "collector")
    project.compose("run", "--rm", "-T", "collector", **GSM8K)
    for name in ("rollouts", "gsm8k"):
        rows = read_rows(project.folder / f"results/{name}.jsonl")
        assert keys_of(rows) == [(task, repeat) for task in range(5) for repeat in range(2)]
    assert {path.stat().st_uid for path in (project.folder / "results").iterdir()} == {USER}


def test_the_page_shows_them_through_the_published_port_to_who_has_the_token(project: Project) -> None:
    url = "http://127.0.0.1:8080/api/overview"
    eventually("the viewer", lambda: project.host.get(url)[0])
    status, body = project.host.get(url, TOKEN)
    (run,) = json.loads(body)["runs"]
    assert (status, run["path"]) == (200, "results/rollouts.jsonl") and run["size"] > 0
    assert project.host.get(url)[0] == 401


def test_no_part_can_do_more_than_it_needs(project: Project) -> None:
    for part in PARTS:
        container = project.container(part)
        assert confinement(project.host, container) == CONFINED, part
        assert project.host.inspect(container)["HostConfig"]["PidsLimit"] == 512, part


def test_generated_code_is_contained_in_a_container(project: Project) -> None:
    assert "contained by landlock" in project.compose("exec", "-T", "environment", "ng_doctor", "sandbox")


def test_a_part_that_is_killed_comes_back_and_plays(project: Project) -> None:
    container = project.container("policy")
    killed = {name for name in project.ready() if name.startswith("policy_model")}
    assert len(killed) == 1
    os.kill(project.host.inspect(container)["State"]["Pid"], signal.SIGKILL)
    eventually("a restart", lambda: project.host.inspect(container)["RestartCount"] == 1)
    eventually("readiness", lambda: project.ready().isdisjoint(killed) and len(project.ready()) == 5)
    project.compose("run", "--rm", "-T", "collector", OUTPUT="after")
    assert len(read_rows(project.folder / "results/after.jsonl")) == 10


def test_a_part_without_its_secret_says_which_file_it_expects(project: Project) -> None:
    with pytest.raises(AssertionError, match="ROLLYARD_TOKEN_FILE=/nowhere cannot be read: No such file"):
        project.compose("run", "--rm", "-T", "--no-deps", "-e", "ROLLYARD_TOKEN_FILE=/nowhere", "policy")


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The file as Docker Compose reads it for a policy on vLLM."""
    if (compose := shutil.which("docker-compose", path=str(Path(sys.executable).parent))) is None:
        pytest.skip("needs Docker Compose (make test-deploy)")
    vllm = "responses_api_models/vllm_model/configs/vllm_model.yaml"
    variables = {"POLICY": vllm, "policy_model_name": "org/model", "PATH": "/usr/bin:/bin"}
    command = [compose, "--file", str(FILE), "--profile", "vllm", "config", "--format", "json"]
    return dict(json.loads(subprocess.check_output(command, env=variables)))


@pytest.mark.smoke
def test_no_port_is_open_to_other_hosts(described: dict[str, Any]) -> None:
    ports = [port for service in described["services"].values() for port in service.get("ports", ())]
    assert [(port["host_ip"], port["published"]) for port in ports] == [("127.0.0.1", "8080")]


@pytest.mark.smoke
def test_a_policy_on_vllm_is_a_profile_and_two_variables(described: dict[str, Any]) -> None:
    services = described["services"]
    assert services["vllm"]["profiles"] == ["vllm"] and services["vllm"]["command"] == ["--model", "org/model"]
    assert services["policy"]["environment"]["policy_base_url"] == "http://vllm:8000/v1"
    assert all("vllm_model.yaml" in services[name]["command"][1] for name in ("head", "policy", "environment", "agent"))


@pytest.mark.smoke
def test_the_documented_commands_name_what_is_in_the_file() -> None:
    text = sections(page("operation.md"))["In containers"]
    services = yaml.safe_load(FILE.read_text())["services"]
    for name in re.findall(r"docker compose (?:run --rm|exec|logs|up --detach) ([a-z]+)", text):
        assert name in services
    for variable in re.findall(r"^\| `([A-Za-z_]+)` \|", text, re.MULTILINE):
        assert f"${{{variable}:" in FILE.read_text(), variable


@pytest.mark.smoke
def test_the_image_has_what_every_environment_needs_and_ignores_nothing_that_it_copies() -> None:
    dockerfile = (INSTALLED / "Dockerfile").read_text()
    assert re.search(r"requirements/subset\.py aws hub ifeval math zstd ", dockerfile)
    assert "--require-hashes" in dockerfile
    allowed = set(re.findall(r"^!(\S+)$", (INSTALLED / ".dockerignore").read_text(), re.MULTILINE))
    for name in " ".join(re.findall(r"^COPY (.+) \S+$", dockerfile, re.MULTILINE)).split():
        assert name in allowed and (INSTALLED / name).exists(), name
