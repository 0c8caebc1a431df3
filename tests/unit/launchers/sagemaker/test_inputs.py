"""A config inside a job: only the model's path, addresses of data and the output folder change."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from rollyard.launchers.sagemaker.container.inputs import DownloadedModel, Resolvers, S3Cache, rewrite, with_output_dir
from rollyard.records.errors import OperatorError

SOURCES: list[str | Sequence[str]] = []


def model(path: str, source: str | Sequence[str]) -> str:
    SOURCES.append(source)
    return f"/models/{path.rpartition('/')[2]}"


def resolved(text: str, model_source: str | None = None) -> str:
    resolvers = Resolvers(model, lambda address: f"/data/{address.rpartition('/')[2]}", Path("/out"), model_source)
    return rewrite(text, "c.yaml", resolvers)


def test_a_path_that_is_part_of_another_value_is_not_replaced_and_everything_else_stays() -> None:
    text = """\
# Qwen/Qwen3-1.7B stays in comments
run: {name: "Qwen/Qwen3-1.7B"}   # a name, not a path
model:
  path: Qwen/Qwen3-1.7B  # here
  source: [s3, hub]
tokenizer: {pretrained_model_name_or_path: 'Qwen/Qwen3-1.7B'}
reference:
  path: Qwen/Qwen3-1.7B-Base
lr: 1e-5
flag: yes
quoted: '1e-5'
"""
    expected = text.replace("path: Qwen/Qwen3-1.7B  #", 'path: "/models/Qwen3-1.7B"  #')
    assert resolved(text) == expected.replace("'Qwen/Qwen3-1.7B'}", '"/models/Qwen3-1.7B"}')
    resolved(text, "hub")
    assert SOURCES[-2:] == [["s3", "hub"], "hub"]


CHECKPOINTS = "checkpoints: [{name: a, path: %s/A}, {name: b, path: %s}]"
BOTH = "model: {path: /models/X}\ntokenizer: {path: /models/X}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("data: {datasets: [{order: 's3://b/c/order.txt'}]}", "data: {datasets: [{order: /data/order.txt}]}"),
        ("other: s3://b/x\noutput_dir: results", "other: s3://b/x\noutput_dir: /out"),
        ("model: vllm/Qwen/Qwen3-4B", "model: vllm//models/Qwen3-4B"),
        ("model: openai/gpt-4.1-mini", "model: openai/gpt-4.1-mini"),
        (CHECKPOINTS % ("x", "B"), CHECKPOINTS % ("/models", "/models/B")),
        ("model:\n  path: &p Qwen/X\ntokenizer:\n  path: *p\n", BOTH),
        ("model:\n  path: >-\n    Qwen/X\nnext: 1\n", "model: {path: /models/X}\nnext: 1"),
    ],
    ids=["data", "output", "served", "endpoint", "checkpoints", "anchor", "block"],
)
def test_data_at_s3_the_output_folder_and_models_that_a_job_loads_are_replaced(text: str, expected: str) -> None:
    assert yaml.safe_load(resolved(text)) == yaml.safe_load(expected)


@pytest.mark.parametrize(
    "text", ["a: 1\n", "# x\n---\n  &x a: 1\n  b: 2\n", "{a: 1}", "{}", "{a: 1, output_dir: s3://b/c}"]
)
def test_the_config_of_an_evaluation_gets_an_output_folder_unless_it_has_one(text: str) -> None:
    expected = {"output_dir": "/run/o u't"} | yaml.safe_load(text)
    assert yaml.safe_load(with_output_dir(text, Path("/run/o u't"))) == expected


@pytest.mark.parametrize("text", ["- a\n", "", "a: [", "a"])
def test_what_is_not_a_mapping_is_one_line(text: str) -> None:
    with pytest.raises(OperatorError, match=r"c\.yaml is not"):
        resolved(text)


class Bucket:
    """The objects below one prefix, as S3Cache lists them."""

    def __init__(self, *keys: str) -> None:
        self.keys = keys

    def get_paginator(self, name: str) -> Bucket:
        return self

    def paginate(self, Bucket: str, Prefix: str) -> list[object]:  # noqa: N803
        found = [{"Key": key, "Size": 2, "ETag": '"x-1"'} for key in self.keys if key.startswith(Prefix)]
        return [{"Contents": found}]

    def head_object(self, Bucket: str, Key: str) -> object:  # noqa: N803
        error = type("ClientError", (Exception,), {"__module__": "botocore.exceptions"})("not found")
        error.response = {"Error": {"Code": "404"}, "ResponseMetadata": {"HTTPStatusCode": 404}}
        raise error

    def download_file(self, bucket: str, key: str, target: str) -> None:
        Path(target).write_text("{}")


def test_a_model_is_local_in_s3_or_on_the_hub_in_the_order_of_the_config(tmp_path: Path) -> None:
    (tmp_path / "assets/model").mkdir(parents=True)
    bucket = Bucket("p/models/Qwen3-1.7B/config.json")
    cache = S3Cache(tmp_path / "cache", lambda: bucket)
    source = DownloadedModel(tmp_path, "s3://b/p/models", cache, lambda line: None)
    assert source.resolve("assets/model", "auto") == str(tmp_path / "assets/model")
    for path in ("Qwen/Qwen3-1.7B", "/efs/hf/Qwen3-1.7B"):
        assert source.resolve(path, "auto").startswith(f"{tmp_path}/cache/")
    orders: list[tuple[str, str | list[str]]] = [("Qwen/Qwen3-1.7B", "hub"), ("Qwen/Qwen3-1.7B", ["hub", "s3"])]
    for path, order in [*orders, ("Qwen/Qwen3-4B", "auto")]:  # an empty prefix falls back to the hub
        assert source.resolve(path, order) == path
    for path, order, problem in (
        ("Qwen/Qwen3-4B", "s3", r"s3://b/p/models/Qwen3-4B/ contains no objects$"),
        ("/efs/x", "auto", r"/efs/x; .*no objects; .*"),
        ("x", "S3", r"model\.source is 'S3'"),
    ):
        with pytest.raises(OperatorError, match=problem):
            source.resolve(path, order)
