"""The checks of a weights folder before any engine is asked to load it."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from rollyard.records.errors import Failure
from rollyard.responses_api_models.chat_engine import checkpoint
from rollyard.responses_api_models.chat_engine.checkpoint import ModelSignature, check, start_checkpoint
from tests.support.checkpoints import (
    EMBEDDINGS,
    HEAD,
    INDEX,
    SHAPES,
    overwrite_element,
    rewrite_header,
    write_checkpoint,
    write_shard,
    write_sharded_checkpoint,
    write_tied_checkpoint,
)

WEIGHTS_FILE = "model.safetensors"


def engine(folder: str) -> ModelSignature:
    started = start_checkpoint(folder)
    assert started is not None and started.signature is not None
    return started.signature


def refused(folder: str | Path, started: str | None = None, **more: Any) -> str:
    with pytest.raises(Failure) as caught:
        check(str(folder), engine(started) if started else None, **more)
    assert caught.value.kind == "bad_request"
    return caught.value.problem.detail


def test_a_whole_checkpoint_of_the_same_model_passes_without_a_warning(tmp_path: Path) -> None:
    for dtype in ("F64", "F32", "BF16", "F16", "F8_E5M2", "F8_E4M3"):
        before, after = tmp_path / dtype / "before", tmp_path / dtype / "after"
        model = engine(write_checkpoint(before, dtype=dtype))
        found = check(write_checkpoint(after, seed=1, dtype=dtype), model)
        assert (found.folder, len(found.fingerprint), found.warnings) == (str(after), 16, ()), dtype


def test_a_sharded_checkpoint_is_the_same_model_as_one_in_a_single_file(tmp_path: Path) -> None:
    before = engine(write_checkpoint(tmp_path / "before"))
    assert check(write_sharded_checkpoint(tmp_path / "after"), before).warnings == ()


def cut_at(size: int) -> Callable[[bytes], bytes]:
    return lambda whole: whole[:size]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        *((cut_at(size), WEIGHTS_FILE) for size in (0, 3, 60, -1)),
        (lambda whole: whole + b"\0", " bytes; expected "),
        (lambda whole: b"\xff" * 64, "the limit is"),  # a header of terabytes is not read
    ],
)
def test_a_file_of_another_size_than_its_header_says_is_refused(
    tmp_path: Path, change: Callable[[bytes], bytes], why: str
) -> None:
    folder = write_checkpoint(tmp_path / "new")
    file = tmp_path / "new" / WEIGHTS_FILE
    file.write_bytes(change(file.read_bytes()))
    assert why in refused(folder)


WRONG_ENTRIES: list[Any] = [
    {"dtype": "F32", "shape": [8, 4], "data_offsets": [64, 192]},
    {"dtype": "F32", "shape": [8, 4], "data_offsets": [128, 0]},
    {"dtype": "F32", "shape": [8, 3], "data_offsets": [0, 128]},
    {"dtype": "F32", "shape": [-8, -4], "data_offsets": [0, 128]},
    {"dtype": "F32", "shape": "8x4", "data_offsets": [0, 128]},
    {"dtype": "F32", "shape": [8, 4]},
    "F32",
    None,
]


def test_a_header_that_does_not_describe_its_bytes_is_refused(tmp_path: Path) -> None:
    for entry in WRONG_ENTRIES:
        folder = write_checkpoint(tmp_path / "new")
        rewrite_header(tmp_path / "new" / WEIGHTS_FILE, **{EMBEDDINGS: entry})
        assert WEIGHTS_FILE in refused(folder), entry


WRONG_INDEXES: list[tuple[Any, str]] = [
    ({"weight_map": {"a": WEIGHTS_FILE, "b": "model-00002.safetensors"}}, "model-00002.safetensors is missing"),
    ({"weight_map": {"a": WEIGHTS_FILE}}, "maps a to"),
    ({"weight_map": {"a": "../other/model.safetensors"}}, "../other/model.safetensors"),
    ({"weight_map": {"a": 1}}, "'1'"),
    ({"weight_map": {}}, "no weight_map"),
    ({}, "no weight_map"),
    ([], "JSON object"),
]


def test_an_index_that_does_not_match_its_folder_is_refused(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "new")
    for index, why in WRONG_INDEXES:
        (tmp_path / "new" / INDEX).write_bytes(orjson.dumps(index))
        assert why in refused(folder), index


def test_a_folder_with_two_checkpoints_is_refused(tmp_path: Path) -> None:
    folder = write_sharded_checkpoint(tmp_path / "new")
    write_shard(tmp_path / "new" / WEIGHTS_FILE, SHAPES)
    assert WEIGHTS_FILE in refused(folder)
    (tmp_path / "new" / INDEX).unlink()
    assert "only once" in refused(folder)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({EMBEDDINGS: [9, 4]}, "model.embed_tokens.weight is [9, 4] instead of [8, 4]"),
        ({"v_head.weight": [1, 4]}, "it has v_head.weight"),
        *(({missing: None}, f"it lacks {missing}") for missing in SHAPES),
    ],
)
def test_other_tensors_than_those_of_the_engines_model_are_refused(tmp_path: Path, change: Any, why: str) -> None:
    shapes = {name: shape for name, shape in {**SHAPES, **change}.items() if shape}
    assert why in refused(write_checkpoint(tmp_path / "new", shapes), write_checkpoint(tmp_path / "before"))


def test_an_untied_model_without_a_head_is_refused_even_if_the_engines_model_is_unknown(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "new", {name: shape for name, shape in SHAPES.items() if name != HEAD})
    assert f"lacks {HEAD}, but tie_word_embeddings is false" in refused(folder)


def test_a_tied_head_that_is_stored_explicitly_is_the_same_model(tmp_path: Path) -> None:
    explicit = tmp_path / "spelled"
    write_checkpoint(explicit, {HEAD: SHAPES[HEAD]})
    # The same bytes under two tensor names.
    content, size = (explicit / WEIGHTS_FILE).read_bytes()[-128:], 128
    entries = {
        name: {"dtype": "F32", "shape": [8, 4], "data_offsets": [offset, offset + size]}
        for name, offset in ((EMBEDDINGS, 0), (HEAD, size))
    }
    head = orjson.dumps(entries)
    (explicit / WEIGHTS_FILE).write_bytes(len(head).to_bytes(8, "little") + head + content * 2)
    write_checkpoint(tmp_path / "tied", {EMBEDDINGS: SHAPES[EMBEDDINGS]}, tie_word_embeddings=True)
    (explicit / "config.json").write_bytes((tmp_path / "tied" / "config.json").read_bytes())
    assert check(str(explicit), engine(str(tmp_path / "tied"))).warnings == ()


def test_engines_with_a_tied_head_refuse_a_checkpoint_with_a_separate_head(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "new", tie_word_embeddings=True)
    assert f"has its own {HEAD}" in refused(folder, write_tied_checkpoint(tmp_path / "before"))


OTHER_CONFIGS: list[dict[str, Any]] = [
    {"architectures": ["OtherForCausalLM"]},
    {"model_type": "other"},
    {"num_attention_heads": 4},
    {"vocab_size": 9},
    {"rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}},
    {"rope_theta": 20000},
    {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
    {"text_config": {"rms_norm_eps": 1e-5}},
]


def test_a_config_that_changes_the_computation_is_refused(tmp_path: Path) -> None:
    known: dict[str, Any] = {"rope_scaling": None, "rope_theta": 10000.0, "text_config": {"rms_norm_eps": 1e-6}}
    before = write_checkpoint(tmp_path / "before", **known)
    for config in OTHER_CONFIGS:
        changed = write_checkpoint(tmp_path / "new", **{**known, **config})
        assert next(iter(config)).split("_")[0] in refused(changed, before), config


def test_the_config_of_another_transformers_version_is_the_same_model(tmp_path: Path) -> None:
    old: dict[str, Any] = {"rope_theta": 10000, "rope_scaling": None, "head_dim": None, "torch_dtype": "bfloat16"}
    old |= {"sliding_window": 4096, "use_sliding_window": False, "transformers_version": "4.1"}
    new: dict[str, Any] = {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "head_dim": 2}
    new |= {"sliding_window": 512, "use_sliding_window": False}
    before = engine(write_checkpoint(tmp_path / "before", **old))
    assert check(write_checkpoint(tmp_path / "new", **new), before).warnings == ()


def test_another_vocabulary_is_refused_but_a_missing_one_is_accepted(tmp_path: Path) -> None:
    before = write_checkpoint(tmp_path / "before", tokens="ab")
    assert "tokens" in refused(write_checkpoint(tmp_path / "new", tokens="ba"), before)
    assert check(write_checkpoint(tmp_path / "bare"), engine(before)).warnings == ()


def test_integer_weights_are_refused_and_another_float_width_is_a_warning(tmp_path: Path) -> None:
    before = write_checkpoint(tmp_path / "before", dtype="BF16")
    assert "model.embed_tokens.weight is I32 instead of BF16" in refused(
        write_checkpoint(tmp_path / "i", dtype="I32"), before
    )
    assert "4 tensors are F32" in check(write_checkpoint(tmp_path / "f", dtype="F32"), engine(before)).warnings[0]


def test_a_folder_that_changes_while_it_is_checked_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_checkpoint(tmp_path / "new")
    monkeypatch.setattr(
        checkpoint, "check_finite", lambda tensors: write_shard(tmp_path / "new" / WEIGHTS_FILE, SHAPES, seed=1)
    )
    assert "changed" in refused(folder)


WRONG_PATHS: list[tuple[str, str]] = [
    ("weights/new", "absolute path"),
    ("~/new", "absolute path"),
    ("{}/nwe", "no folder"),
    ("{}/new/model.safetensors", "is a file"),
    ("{}/loop", "cannot be read"),
    ("{}/dangling", "no folder"),
    ("{}/a\0b", "cannot be read"),
    ("{}/" + "a" * 300, "cannot be read"),
    ("{}", "config.json cannot be read"),
    ("{}/torch", "contains no *.safetensors"),
]


def test_a_path_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "new")
    write_checkpoint(tmp_path / "torch")
    (tmp_path / "torch" / WEIGHTS_FILE).rename(tmp_path / "torch" / "pytorch_model.bin")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "dangling").symlink_to(tmp_path / "gone")
    write_shard(tmp_path / WEIGHTS_FILE, SHAPES)
    for path, why in WRONG_PATHS:
        assert why in refused(path.format(tmp_path)), path


def test_with_the_check_off_a_folder_that_only_the_engines_see_is_accepted(tmp_path: Path) -> None:
    found = check("/only/there", None, "off")
    assert (found.folder, found.fingerprint, "nothing was checked" in found.warnings[0]) == ("/only/there", "", True)


def test_the_fingerprint_changes_with_every_save_into_the_same_folder(tmp_path: Path) -> None:
    folder = tmp_path / "reused"
    fingerprints = {checkpoint.fingerprint(Path(write_checkpoint(folder)))}
    stat = (folder / WEIGHTS_FILE).stat()
    for seed in (1, 2):
        write_checkpoint(folder, seed=seed)
        os.utime(folder / WEIGHTS_FILE, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # like a copy that preserves the times
        fingerprints.add(checkpoint.fingerprint(folder))
    os.utime(folder / WEIGHTS_FILE)
    fingerprints.add(checkpoint.fingerprint(folder))
    write_checkpoint(folder, seed=2, vocab_size=9)
    fingerprints.add(checkpoint.fingerprint(folder))
    assert len(fingerprints) == 5


NOT_FINITE = [
    ("F64", struct.pack("<d", float("-inf"))),
    ("F32", struct.pack("<f", float("nan"))),
    ("F32", b"\x01\x00\x80\xff"),
    ("BF16", b"\xc0\x7f"),
    ("BF16", b"\x80\xff"),
    ("F16", struct.pack("<e", float("-inf"))),
    ("F8_E5M2", b"\x7c"),
    ("F8_E4M3", b"\xff"),
]


@pytest.mark.parametrize("index", [0, 7, -1])
def test_a_single_weight_that_is_not_finite_is_found_at_any_position(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: int
) -> None:
    monkeypatch.setattr(checkpoint, "PIECE", 24)  # so that a tensor is read in several pieces
    for dtype, value in NOT_FINITE:
        folder = write_checkpoint(tmp_path / "new", dtype=dtype)
        overwrite_element(tmp_path / "new" / WEIGHTS_FILE, "model.layers.1.weight", value, index)
        with pytest.raises(Failure, match=r"model\.layers\.1\.weight in .* NaN"):
            check(folder, None)
        assert check(folder, None, "headers").fingerprint
