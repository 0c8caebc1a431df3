"""docker-compose.yml: the parts that its commands start form one run, and the results belong to the host's user."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from rollyard.records.data_files import INSTALLED
from tests.faults.crash import compose
from tests.support.doc_pages import page, sections
from tests.support.stacks import keys_of, read_rows

FILE = INSTALLED / "docker-compose.yml"
ENVIRON = {"ROLLYARD_TOKEN": "only-for-this-test-0123456789", "REPEATS": "2"}
GSM8K = {"AGENT": "gsm8k_agent", "INPUT": "resources_servers/gsm8k/data/example.jsonl", "OUTPUT": "gsm8k"}


@pytest.fixture(scope="module")
def compose_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder of a host on which the compose file ran, and the observations."""
    folder = tmp_path_factory.mktemp("host")
    given = [str(FILE), str(folder), str(Path(sys.executable).parent), json.dumps(ENVIRON), json.dumps([GSM8K])]
    command = [sys.executable, "-m", "tests.faults.crash.compose", *given]
    done = subprocess.run(command, cwd=INSTALLED, capture_output=True, text=True)
    if "unshare: " in done.stderr:
        pytest.skip(f"no namespaces here, which stand for the containers' network: {done.stderr.splitlines()[-1]}")
    logs = "\n".join(f"{path.name}:\n{path.read_text()[-2000:]}" for path in sorted(folder.glob("*.log")))
    assert done.returncode == 0, f"{done.stderr}\n{logs}"
    return folder, json.loads(done.stdout.splitlines()[-1])


def test_two_environments_are_collected_across_the_parts_into_the_hosts_folder(
    compose_run: tuple[Path, dict[str, Any]],
) -> None:
    folder, observed = compose_run
    assert observed["collected"] == [0, 0], (folder / "collector.log").read_text()
    assert observed["health"] == ["CMD", 0]
    for name in ("rollouts", "gsm8k"):
        rows = read_rows(folder / f"results/{name}.jsonl")
        assert keys_of(rows) == [(task, repeat) for task in range(5) for repeat in range(2)]


def test_the_page_shows_them_through_the_published_port(compose_run: tuple[Path, dict[str, Any]]) -> None:
    page = compose_run[1]["page"]
    (run,) = page["body"]["runs"]
    assert (page["status"], run["path"]) == (200, "results/rollouts.jsonl") and run["size"] > 0


def test_every_part_ran_in_its_own_container(compose_run: tuple[Path, dict[str, Any]]) -> None:
    logs = {path.stem: path.read_text() for path in compose_run[0].glob("*.log")}
    assert re.search(r"policy_model +ready +http://policy:", logs["head"])
    assert re.search(r"gsm8k_agent +ready +http://agent:", logs["head"])
    assert all(logs[name].rstrip().endswith("stopped") for name in ("head", "policy", "environment", "agent"))


def test_no_part_starts_without_a_token() -> None:
    with pytest.raises(KeyError, match="ROLLYARD_TOKEN: set it to"):
        compose.services(FILE, {})


def test_no_port_is_open_to_other_hosts() -> None:
    published = [port for service in compose.services(FILE, ENVIRON).values() for port in service.get("ports", ())]
    assert published == ["127.0.0.1:8080:8080"]


def test_a_policy_on_vllm_is_a_profile_and_two_variables() -> None:
    vllm = "responses_api_models/vllm_model/configs/vllm_model.yaml"
    services = compose.services(FILE, {**ENVIRON, "POLICY": vllm, "policy_model_name": "org/model"})
    assert services["vllm"]["profiles"] == ["vllm"]
    assert services["vllm"]["command"] == ["--model", "org/model"]
    assert services["policy"]["environment"]["policy_base_url"] == "http://vllm:8000/v1"
    assert all(vllm in services[name]["command"][1] for name in ("head", "policy", "environment", "agent"))


def test_the_documented_commands_name_what_is_in_the_file() -> None:
    text = sections(page("operation.md"))["In containers"]
    services = yaml.safe_load(FILE.read_text())["services"]
    for name in re.findall(r"docker compose (?:run --rm|exec|logs|up --detach) ([a-z]+)", text):
        assert name in services
    for variable in re.findall(r"^\| `([A-Za-z_]+)` \|", text, re.MULTILINE):
        assert f"${{{variable}:" in FILE.read_text(), variable


def test_the_image_has_what_every_environment_needs_and_ignores_nothing_that_it_copies() -> None:
    dockerfile = (INSTALLED / "Dockerfile").read_text()
    assert re.search(r"requirements/subset\.py aws hub ifeval math zstd ", dockerfile)
    assert "--require-hashes" in dockerfile
    allowed = set(re.findall(r"^!(\S+)$", (INSTALLED / ".dockerignore").read_text(), re.MULTILINE))
    for name in " ".join(re.findall(r"^COPY (.+) \S+$", dockerfile, re.MULTILINE)).split():
        assert name in allowed and (INSTALLED / name).exists(), name
