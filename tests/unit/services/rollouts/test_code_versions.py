"""Versions of the servers' code: which are distinguished, which are rejected, and which rows are marked."""

from __future__ import annotations

import time
from pathlib import Path

import orjson
import pytest

from rollyard.analysis.metrics.load import load
from rollyard.records.errors import Failure, OperatorError
from rollyard.records.rollout_file import RolloutPaths
from rollyard.records.run_types import Registration, ServerCode
from rollyard.records.types import Json
from rollyard.services.head.registry import ServerRegistry
from rollyard.services.rollouts.collection import reachable
from rollyard.services.rollouts.store import RolloutStore
from tests.support.fixtures import load_text, make_folder, server_yaml


def test_reachable_servers_are_found_through_settings_transitively(tmp_path: Path) -> None:
    mine = make_folder(tmp_path)
    text = (
        server_yaml(mine, "{peer: {type: resources_servers, name: b}}", name="a")
        + server_yaml(mine, "{peer: {name: c}}", name="b")
        + server_yaml(mine, name="c")
        + server_yaml(mine, name="unrelated")
    )
    config = load_text(tmp_path, text)
    directory = ServerRegistry("run", config.servers, config.identity()).directory()
    assert reachable({"a"}, directory.references) == {"a", "b", "c"}


def code_of(tag: str, **files: str) -> ServerCode:
    return ServerCode(digest=tag, files=files, revision="")


OLD = {"environment": code_of("old", **{"app.py": "1", "gone.py": "2"})}
NEW = {"environment": code_of("new", **{"app.py": "9", "fresh.py": "3"})}


def collect_one(
    output: Path, code: dict[str, ServerCode], *, accept: bool = False, identity: Json | None = None
) -> str:
    """Collect one row into the store; return the mark of rows collected with `code`."""
    store = RolloutStore(
        RolloutPaths(output), identity or {}, {}, resume=True, overwrite=False, code=code, accept_changed_code=accept
    )
    store.load()
    key = (len(store.done), 0)
    marks = {"_ng_code": store.code_mark} if store.code_mark else {}
    row = {"_ng_task_index": key[0], "_ng_rollout_index": 0, "reward": 1.0, **marks}
    store.append(key, orjson.dumps(row))
    store.close()
    return store.code_mark


def test_changed_code_is_rejected_with_the_server_and_its_files(tmp_path: Path) -> None:
    assert collect_one(tmp_path / "run.jsonl", OLD) == ""
    with pytest.raises(
        OperatorError,
        match=r"environment: changed app\.py, added fresh\.py, removed gone\.py(.|\n)*accept-changed-code",
    ):
        collect_one(tmp_path / "run.jsonl", NEW)


@pytest.mark.parametrize("accept", [False, True])
def test_an_output_without_rollouts_protects_nothing(tmp_path: Path, accept: bool) -> None:
    output = tmp_path / "run.jsonl"
    paths = RolloutPaths(output)
    RolloutStore(paths, {"n": 1}, {}, resume=True, overwrite=False, code=OLD).close()
    paths.failures.write_bytes(b"{}\n")
    assert collect_one(output, NEW, accept=accept, identity={"n": 2}) == ""
    assert "versions" not in " ".join(load(output).profile.notes)


def test_accepted_code_marks_later_rows_and_stays_accepted(tmp_path: Path) -> None:
    output = tmp_path / "run.jsonl"
    marks = [
        collect_one(output, OLD),
        collect_one(output, NEW, accept=True),
        collect_one(output, NEW),
        collect_one(output, OLD),
    ]
    assert marks[0] == marks[3] == "" and marks[1] == marks[2] != ""
    assert [orjson.loads(line).get("_ng_code", "") for line in output.read_bytes().splitlines()] == marks


@pytest.mark.parametrize("records", [True, False])
def test_an_output_of_an_older_version_resumes_and_later_changes_are_refused(tmp_path: Path, records: bool) -> None:
    output = tmp_path / "run.jsonl"
    collect_one(output, OLD)
    path = RolloutPaths(output).manifest
    older = orjson.loads(path.read_bytes())
    if records:  # digests of all files that the server imports, and the versions of its packages
        older["code"][0]["servers"]["environment"] = {"digest": "x", "files": {"a.py": "1"}, "packages": {"numpy": "2"}}
    else:
        del older["code"], older["output"]
    path.write_bytes(orjson.dumps(older))
    store = RolloutStore(RolloutPaths(output), {}, {}, resume=True, overwrite=False, code=OLD)
    store.close()
    assert len([note for note in store.notes if "older Rollyard" in note]) == 1 and store.code_mark == ""
    assert collect_one(output, OLD) == ""
    with pytest.raises(OperatorError, match=r"changed app\.py"):
        collect_one(output, NEW)


def test_settings_of_unreachable_servers_do_not_block_an_older_output(tmp_path: Path) -> None:
    output = tmp_path / "run.jsonl"
    collect_one(output, OLD, identity={"settings": {"environment": {"speed": 1}, "unrelated": {"speed": 1}}})
    collect_one(output, OLD, identity={"settings": {"environment": {"speed": 1}}})
    with pytest.raises(OperatorError, match=r"settings\.environment\.speed: 1 .* 2 "):
        collect_one(output, OLD, identity={"settings": {"environment": {"speed": 2}}})


def register(registry: ServerRegistry, instance: str, code: ServerCode) -> None:
    registry.expect(instance)
    registry.register(Registration(name="environment", instance=instance, url="http://a", pid=1, ready=True, code=code))


def test_a_run_rejects_an_instance_whose_code_changed(tmp_path: Path) -> None:
    config = load_text(tmp_path, server_yaml(make_folder(tmp_path)))
    registry = ServerRegistry("run", config.servers, config.identity(), clock=time.monotonic)
    register(registry, "environment#1", OLD["environment"])
    registry.remove("environment#1")
    with pytest.raises(Failure, match=r"changed app\.py.*restart ng_run"):
        register(registry, "environment#2", NEW["environment"])
    assert registry.directory().servers["environment"] == []
    assert registry.directory().changed_code.keys() == {"environment"}
    register(registry, "environment#3", OLD["environment"])
    assert registry.directory().servers["environment"] == ["http://a"] and registry.directory().changed_code == {}
