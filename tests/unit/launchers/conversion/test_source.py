"""The key of a checkpoint's content, and what is refused before anything is converted."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from rollyard.launchers.conversion.cache import ConversionRequest, conversion_target
from rollyard.launchers.conversion.source import Digests, digest_of
from rollyard.records.errors import OperatorError, RunError
from tests.unit.launchers.conversion.fake_conversion import write_checkpoint


def key(request: ConversionRequest) -> str:
    return request.read()[0].key


def weights(request: ConversionRequest) -> Path:
    return Path(request.checkpoint)


def test_the_key_does_not_depend_on_place_and_time(tmp_path: Path) -> None:
    """B3: the same content was converted again under another path."""
    request = write_checkpoint(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "another mount")
    (tmp_path / "link").symlink_to("one")
    for name in ("another mount", "link"):
        folder = tmp_path / name / "grpo" / "step_170"
        os.utime(folder / "policy/weights/__0_0.distcp", (1, 1))
        moved = replace(request, checkpoint=f"{folder}/policy/weights/", config=folder / "config.yaml")
        assert key(moved) == key(request)


@pytest.fixture
def asked(tmp_path: Path) -> ConversionRequest:
    return write_checkpoint(tmp_path)


def test_overwritten_weights_of_the_same_size_and_time_have_another_key(tmp_path: Path) -> None:
    """B3: the key was a hash of paths, so that stale weights were evaluated."""
    request = write_checkpoint(tmp_path, b"a" * 5_000_000)
    file = weights(request) / "__1_0.distcp"
    stat, before = file.stat(), key(request)
    with file.open("r+b") as opened:
        opened.seek(4_000_000)
        opened.write(b"b")
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert key(request) != before


@pytest.mark.parametrize(("name", "counts"), [(".metadata", True), ("__0_0.distcp", True), ("notes.txt", False)])
def test_each_file_of_the_checkpoint_counts_and_no_other(asked: ConversionRequest, name: str, counts: bool) -> None:
    before = key(asked)
    (weights(asked) / name).write_bytes(b"changed")
    assert (key(asked) != before) == counts


def test_only_the_relevant_part_of_the_config_counts(asked: ConversionRequest) -> None:
    before = key(asked)

    def with_policy(**policy: object) -> str:
        Path(asked.config).write_text(yaml.safe_dump({"policy": policy, "grpo": {"seed": 3}}))
        return key(asked)

    assert with_policy(model_name="some/model", learning_rate=1e-6) == before
    changes: list[dict[str, object]] = [
        {"model_name": "other/model"},
        {"tokenizer": {"name": "other/tokenizer"}},
        {"hf_overrides": {"tie_word_embeddings": False}},
        {"hf_config_overrides": {"max_position_embeddings": 1}},
    ]
    assert len({before, *(with_policy(**{"model_name": "some/model", **one}) for one in changes)}) == 5


def test_a_local_models_config_and_the_saved_tokenizer_count_by_content(
    asked: ConversionRequest, tmp_path: Path
) -> None:
    keys = set()
    for name in ("base", "copy"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        Path(asked.config).write_text(yaml.safe_dump({"policy": {"model_name": str(tmp_path / name)}}))
        keys.add(key(asked))
    assert len(keys) == 1
    (tmp_path / "copy/config.json").write_text('{"vocab_size": 3}')
    keys.add(key(asked))
    tokenizer = weights(asked).parent / "tokenizer"
    tokenizer.mkdir()
    (tokenizer / "tokenizer.json").write_text("{}")
    assert len({*keys, key(asked)}) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("policy: [", "not valid YAML"),
        ("", "no section 'policy'"),
        ("policy:", "no section 'policy'"),
        ("policy: {model_name: 3}", "policy.model_name of .* is 3"),
        ("policy: {model_name: m, hf_overrides: [1]}", "expected a mapping"),
    ],
)
def test_a_config_without_a_model_is_refused(asked: ConversionRequest, text: str, message: str) -> None:
    Path(asked.config).write_text(text)
    with pytest.raises(OperatorError, match=message):
        asked.read()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"config": "absent.yaml"}, r"absent\.yaml"),
        ({"checkpoint": "grpo"}, "still being saved"),
        ({"checkpoint": "grpo/step_170"}, r"did you mean .*step_170/policy/weights"),
        ({"checkpoint": "hf"}, "--skip-conversion"),
        ({"hf_path": "grpo/step_170/policy/weights"}, "each other"),
        ({"hf_path": "grpo/step_170/policy/weights/hf"}, "each other"),
        ({"hf_path": "grpo/step_170/policy"}, "each other"),
    ],
)
def test_what_cannot_be_converted_is_refused(
    asked: ConversionRequest, tmp_path: Path, change: dict[str, str], message: str
) -> None:
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf/model.safetensors").touch()
    changed: dict[str, Any] = {key: tmp_path / path for key, path in change.items()}
    with pytest.raises(OperatorError, match=message):
        replace(asked, **changed).read()


def test_a_dry_run_creates_nothing(tmp_path: Path) -> None:
    request = replace(write_checkpoint(tmp_path), remember=False)
    before = sorted(tmp_path.rglob("*"))
    assert conversion_target(request).parent == tmp_path / "log/nemo-rl/hf_eval_checkpoints"
    assert sorted(tmp_path.rglob("*")) == before


def test_an_unchanged_file_is_read_once_unless_its_stored_digest_is_damaged(
    asked: ConversionRequest, tmp_path: Path
) -> None:
    folder, name = weights(asked), "__0_0.distcp"
    Digests(tmp_path / "store", clock=lambda: folder.stat().st_ctime).of(folder, [name])
    assert not (tmp_path / "store").exists()  # the file has just changed, and may change again
    later = Digests(tmp_path / "store", clock=lambda: folder.stat().st_ctime + 60)
    first = later.of(folder, [name])
    state, digest = first[name]
    (store,) = (tmp_path / "store").iterdir()
    for content in ("", "[]", '{"__0_0.distcp": 3}', "\x00" * 100):
        store.write_text(content)
        assert later.of(folder, [name]) == first
    # A stored digest that is wrong shows that it is used.
    store.write_text(store.read_text().replace(digest, "stored"))
    assert later.of(folder, [name]) == {name: (state, "stored")}
    (folder / name).write_bytes(b"changed")
    assert later.of(folder, [name])[name][1] == digest_of(folder / name)


def test_a_checkpoint_that_changes_during_the_conversion_is_noticed(asked: ConversionRequest) -> None:
    source, _ = asked.read()
    source.require_unchanged()
    (weights(asked) / "__1_0.distcp").write_bytes(b"another step")
    with pytest.raises(RunError, match=r"__1_0.distcp changed"):
        source.require_unchanged()
