"""Checkpoints in S3, through real boto3 against a local store."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from rollyard.launchers.evaluation.checkpoints import S3Source
from rollyard.records.errors import RunError
from tests.support.fake_stores import store
from tests.unit.launchers.evaluation.checkpoint_files import safetensors


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")


def checkpoint(step: int, weights: bytes) -> dict[str, bytes]:
    return {f"bucket/run/step_{step}/config.json": b"{}", f"bucket/run/step_{step}/model.safetensors": weights}


def test_complete_checkpoints_are_copied_and_the_copies_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {**checkpoint(20, safetensors()), **checkpoint(3, safetensors()), "bucket/run/notes.txt": b"x"}
    with store(files) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        source = S3Source("s3://bucket/run", tmp_path / "copies", "step_*")
        assert source.names() == ["step_3", "step_20"]
        folder, missing = source.fetch("step_20")
        assert (missing, folder is not None and (folder / "model.safetensors").read_bytes()) == ("", safetensors())
        source.done("step_20")
    assert list((tmp_path / "copies").iterdir()) == []


def test_a_partially_uploaded_checkpoint_is_not_used_and_leaves_no_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = checkpoint(1, safetensors()[:20])
    with store(files) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        source = S3Source("s3://bucket/run/", tmp_path / "copies")
        folder, missing = source.fetch("step_1")
        assert folder is None and "model.safetensors has 20 bytes" in missing
        assert list((tmp_path / "copies").iterdir()) == []
        files["bucket/run/step_1/model.safetensors"] = safetensors()
        assert source.fetch("step_1")[0] == tmp_path / "copies/step_1"


def test_weights_are_not_copied_before_all_shards_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = {"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}
    files = {f"bucket/run/step_1/{name}": safetensors() for name in ("a.safetensors", "optimizer.bin")}
    files["bucket/run/step_1/config.json"] = b"{}"
    uncopyable = frozenset(name for name in files if name.endswith((".safetensors", ".bin")))
    with store(files, broken=uncopyable) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        source = S3Source("s3://bucket/run", tmp_path / "copies")
        found, missing = source.fetch("step_1")
        assert found is None and "weights" in missing
        files["bucket/run/step_1/model.safetensors.index.json"] = orjson.dumps(index)
        assert source.fetch("step_1") == (None, "b.safetensors is missing")
    assert list((tmp_path / "copies").iterdir()) == []


def test_temporary_names_are_not_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {f"bucket/run/{name}/config.json": b"{}" for name in ("checkpoint-10", "checkpoint-9", "tmp-checkpoint-11")}
    with store(files) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        assert S3Source("s3://bucket/run", tmp_path).names() == ["checkpoint-9", "checkpoint-10"]


def test_an_unreachable_store_is_an_error_with_its_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with store({}) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    source = S3Source("s3://bucket/run", tmp_path / "copies")
    for request in (source.names, lambda: source.fetch("step_1")):
        with pytest.raises(RunError, match="s3://bucket/run/"):
            request()
    assert not (tmp_path / "copies").exists()


def test_an_interrupted_copy_is_an_error_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = checkpoint(1, safetensors())
    with store(files, broken=frozenset({"bucket/run/step_1/model.safetensors"})) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        with pytest.raises(RunError, match="cannot be read"):
            S3Source("s3://bucket/run", tmp_path / "copies").fetch("step_1")
    assert list((tmp_path / "copies").iterdir()) == []
