"""What is seen in a folder of weights before an engine is asked to load it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import orjson
import pytest

from responses_api_models.chat_engine.trainer.checkpoint import check
from services.errors import Failure
from services.types import Json

SHAPES = {"model.embed_tokens.weight": [8, 4], "model.layers.0.weight": [4, 4], "model.layers.1.weight": [4, 4]}
INDEX = "model.safetensors.index.json"


def written(folder: Path, shapes: Mapping[str, list[int]] = SHAPES, **config: object) -> str:
    """A folder of float32 zeros."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_bytes(orjson.dumps(config))
    shard(folder / "model.safetensors", shapes)
    return str(folder)


def shard(file: Path, shapes: Mapping[str, list[int]]) -> None:
    header: Json = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        size = 4 * shape[0] * shape[1]
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    head = orjson.dumps(header)
    file.write_bytes(len(head).to_bytes(8, "little") + head + bytes(end))


def refused(folder: str, current: str | None = None) -> str:
    """Why it is."""
    with pytest.raises(Failure) as caught:
        check(folder, current)
    assert caught.value.kind == "bad_request"
    return caught.value.problem.detail


def test_whole_weights_of_the_same_model_pass_without_a_word(tmp_path: Path) -> None:
    before = written(tmp_path / "before")
    assert check(written(tmp_path / "after"), before) == []


def test_a_head_that_one_folder_spells_out_and_the_other_ties_is_no_difference(tmp_path: Path) -> None:
    before = written(tmp_path / "before", {**SHAPES, "lm_head.weight": [8, 4]})
    assert check(written(tmp_path / "after"), before) == []


@pytest.mark.parametrize("size", [3, 60, -1])
def test_a_file_that_is_still_being_written_is_refused(tmp_path: Path, size: int) -> None:
    folder = written(tmp_path / "new")
    file = tmp_path / "new" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:size])
    assert "is not whole" in refused(folder)


def test_a_part_that_the_index_names_and_the_folder_lacks_is_refused(tmp_path: Path) -> None:
    folder = written(tmp_path / "new")
    (tmp_path / "new" / INDEX).write_bytes(
        orjson.dumps({"weight_map": {"a": "model.safetensors", "b": "model-00002.safetensors"}})
    )
    assert "model-00002.safetensors is missing" in refused(folder)


def test_a_tensor_of_another_shape_is_refused(tmp_path: Path) -> None:
    before = written(tmp_path / "before")
    folder = written(tmp_path / "new", {**SHAPES, "model.embed_tokens.weight": [9, 4]})
    assert "is another model: model.embed_tokens.weight [9, 4] for [8, 4]" in refused(folder, before)


def test_a_layer_that_is_missing_is_refused(tmp_path: Path) -> None:
    before = written(tmp_path / "before")
    folder = written(tmp_path / "new", {name: SHAPES[name] for name in list(SHAPES)[:2]})
    assert "lacks model.layers.1.weight, which the current weights have" in refused(folder, before)


def test_a_tensor_that_the_model_has_no_place_for_is_refused(tmp_path: Path) -> None:
    before = written(tmp_path / "before")
    folder = written(tmp_path / "new", {**SHAPES, "v_head.weight": [1, 4]})
    assert "it has v_head.weight, which the current weights have not" in refused(folder, before)


def test_other_names_for_everything_are_only_told(tmp_path: Path) -> None:
    before = written(tmp_path / "before")
    folder = written(tmp_path / "new", {f"language_{name}": shape for name, shape in SHAPES.items()})
    assert "not compared" in check(folder, before)[0]


@pytest.mark.parametrize("config", [{"tie_word_embeddings": True}, {"text_config": {"tie_word_embeddings": True}}])
def test_a_tied_head_is_warned_of(tmp_path: Path, config: Json) -> None:
    (warning,) = check(written(tmp_path / "new", **config), None)
    assert warning.startswith("tie_word_embeddings is true")


def test_weights_in_another_format_are_passed_on_with_a_word(tmp_path: Path) -> None:
    folder = written(tmp_path / "new")
    (tmp_path / "new" / "model.safetensors").rename(tmp_path / "new" / "pytorch_model.bin")
    assert "holds no *.safetensors" in check(folder, None)[0]


def test_a_folder_that_only_the_engines_see_is_passed_on_with_a_word(tmp_path: Path) -> None:
    assert "not to be seen from this server's machine" in check(str(tmp_path / "elsewhere"), None)[0]


def test_a_folder_that_is_none_of_a_model_is_refused(tmp_path: Path) -> None:
    assert "config.json cannot be read" in refused(str(tmp_path))
    assert "an absolute path" in refused("checkpoints/step-12")
