"""Checkpoints in S3, through real boto3 against a local store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import pytest

from rollyard.launchers.evaluation.checkpoints import S3Source
from rollyard.records.errors import RunError
from tests.support.fake_stores import store
from tests.unit.launchers.evaluation.checkpoint_files import safetensors

WEIGHTS = "bucket/run/step_1/model.safetensors"


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")


@pytest.fixture
def copies(tmp_path: Path) -> Iterator[Path]:
    """The folder of local copies, which is empty again at the end."""
    yield tmp_path / "copies"
    assert not any((tmp_path / "copies").glob("*"))


@contextmanager
def source(
    copies: Path, files: dict[str, bytes], pattern: str = "*", broken: tuple[str, ...] = ()
) -> Iterator[S3Source]:
    with store(files, broken=frozenset(broken)) as url, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", url)
        yield S3Source("s3://bucket/run", copies, pattern)


def checkpoint(step: int, weights: bytes) -> dict[str, bytes]:
    return {f"bucket/run/step_{step}/config.json": b"{}", f"bucket/run/step_{step}/model.safetensors": weights}


def test_complete_checkpoints_are_copied_and_the_copies_removed(copies: Path) -> None:
    files = {**checkpoint(20, safetensors()), **checkpoint(3, safetensors()), "bucket/run/notes.txt": b"x"}
    files["bucket/run/step_9.tmp/config.json"] = b"{}"
    with source(copies, files, "step_*") as found:
        assert found.names() == ["step_3", "step_20"]
        folder, missing = found.fetch("step_20")
        assert (missing, folder is not None and (folder / "model.safetensors").read_bytes()) == ("", safetensors())
        found.done("step_20")


def test_a_partially_uploaded_checkpoint_is_not_used(copies: Path) -> None:
    files = checkpoint(1, safetensors()[:20])
    with source(copies, files) as found:
        folder, missing = found.fetch("step_1")
        assert folder is None and "model.safetensors has 20 bytes" in missing
        assert list(copies.iterdir()) == []
        files[WEIGHTS] = safetensors()
        assert found.fetch("step_1")[0] == copies / "step_1"
        found.done("step_1")


def test_weights_are_not_copied_before_all_shards_exist(copies: Path) -> None:
    index = orjson.dumps({"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}})
    uncopyable = tuple(f"bucket/run/step_1/{name}" for name in ("a.safetensors", "optimizer.bin"))
    files = {"bucket/run/step_1/config.json": b"{}", **dict.fromkeys(uncopyable, safetensors())}
    with source(copies, files, broken=uncopyable) as found:
        assert found.fetch("step_1") == (None, "the weights are missing")
        files["bucket/run/step_1/model.safetensors.index.json"] = index
        assert found.fetch("step_1") == (None, "b.safetensors is missing")


def test_an_unreachable_store_is_an_error_with_its_address(copies: Path) -> None:
    with source(copies, {}) as found:
        pass
    for request in (found.names, lambda: found.fetch("step_1")):
        with pytest.raises(RunError, match="s3://bucket/run/"):
            request()


def test_an_interrupted_copy_is_an_error_and_leaves_nothing(copies: Path) -> None:
    files = checkpoint(1, safetensors())
    with source(copies, files, broken=(WEIGHTS,)) as found, pytest.raises(RunError, match="cannot be read"):
        found.fetch("step_1")
