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


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp"])
def test_each_file_counts(tmp_path: Path, name: str) -> None:
    request = write_checkpoint(tmp_path)
    before = key(request)
    (weights(request) / name).write_bytes(b"changed")
    assert key(request) != before


def test_files_that_are_not_part_of_the_checkpoint_do_not_count(tmp_path: Path) -> None:
    request = write_checkpoint(tmp_path)
    before = key(request)
    (weights(request) / "notes.txt").write_text("a good one")
    assert key(request) == before


def test_only_the_relevant_part_of_the_config_counts(tmp_path: Path) -> None:
    request = write_checkpoint(tmp_path)
    before = key(request)

    def with_policy(**policy: object) -> str:
        Path(request.config).write_text(yaml.safe_dump({"policy": policy, "grpo": {"seed": 3}}))
        return key(request)

    assert with_policy(model_name="some/model", learning_rate=1e-6) == before
    others = [
        with_policy(model_name="other/model"),
        with_policy(model_name="some/model", tokenizer={"name": "other/tokenizer"}),
        with_policy(model_name="some/model", hf_overrides={"tie_word_embeddings": False}),
        with_policy(model_name="some/model", hf_config_overrides={"max_position_embeddings": 1}),
    ]
    assert len({before, *others}) == 5


def test_a_local_models_config_and_the_saved_tokenizer_count_by_content(tmp_path: Path) -> None:
    request = write_checkpoint(tmp_path)
    keys = set()
    for name in ("base", "copy"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        Path(request.config).write_text(yaml.safe_dump({"policy": {"model_name": str(tmp_path / name)}}))
        keys.add(key(request))
    assert len(keys) == 1
    (tmp_path / "copy" / "config.json").write_text('{"vocab_size": 3}')
    keys.add(key(request))
    (weights(request).parent / "tokenizer").mkdir()
    (weights(request).parent / "tokenizer" / "tokenizer.json").write_text("{}")
    keys.add(key(request))
    assert len(keys) == 3


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
def test_a_config_without_a_model_is_refused(tmp_path: Path, text: str, message: str) -> None:
    request = write_checkpoint(tmp_path)
    Path(request.config).write_text(text)
    with pytest.raises(OperatorError, match=message):
        request.read()


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
def test_what_cannot_be_converted_is_refused(tmp_path: Path, change: dict[str, str], message: str) -> None:
    request = write_checkpoint(tmp_path)
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "model.safetensors").touch()
    changed: dict[str, Any] = {key: tmp_path / path for key, path in change.items()}
    with pytest.raises(OperatorError, match=message):
        replace(request, **changed).read()


def test_a_dry_run_creates_nothing(tmp_path: Path) -> None:
    request = replace(write_checkpoint(tmp_path), remember=False)
    before = sorted(tmp_path.rglob("*"))
    assert conversion_target(request).parent == tmp_path / "log/nemo-rl/hf_eval_checkpoints"
    assert sorted(tmp_path.rglob("*")) == before


def test_an_unchanged_file_is_read_once(tmp_path: Path) -> None:
    request = write_checkpoint(tmp_path)
    folder = weights(request)
    later = Digests(tmp_path / "store", clock=lambda: folder.stat().st_ctime + 60)
    first = later.of(folder, ["__0_0.distcp"])
    state = first["__0_0.distcp"][0]
    # A stored digest that is wrong shows that it is used.
    (store,) = (tmp_path / "store").iterdir()
    store.write_text(store.read_text().replace(first["__0_0.distcp"][1], "stored"))
    assert later.of(folder, ["__0_0.distcp"]) == {"__0_0.distcp": (state, "stored")}
    (folder / "__0_0.distcp").write_bytes(b"changed")
    assert later.of(folder, ["__0_0.distcp"])["__0_0.distcp"][1] == digest_of(folder / "__0_0.distcp")


def test_the_digest_of_a_file_that_has_just_changed_is_not_stored(tmp_path: Path) -> None:
    folder = weights(write_checkpoint(tmp_path))
    Digests(tmp_path / "store", clock=lambda: folder.stat().st_ctime).of(folder, ["__0_0.distcp"])
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("content", ["", "[]", '{"__0_0.distcp": 3}', "\x00" * 100])
def test_a_damaged_store_of_digests_is_ignored(tmp_path: Path, content: str) -> None:
    folder = weights(write_checkpoint(tmp_path))
    digests = Digests(tmp_path / "store", clock=lambda: folder.stat().st_ctime + 60)
    before = digests.of(folder, ["__0_0.distcp"])
    (store,) = (tmp_path / "store").iterdir()
    store.write_text(content)
    assert digests.of(folder, ["__0_0.distcp"]) == before


def test_a_checkpoint_that_changes_during_the_conversion_is_noticed(tmp_path: Path) -> None:
    request = write_checkpoint(tmp_path)
    source, _ = request.read()
    source.require_unchanged()
    (weights(request) / "__1_0.distcp").write_bytes(b"another step")
    with pytest.raises(RunError, match=r"__1_0.distcp changed"):
        source.require_unchanged()
