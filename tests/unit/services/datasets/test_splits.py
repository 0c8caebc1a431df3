"""Splits and subsets: the same rule for a clone, an S3 prefix and the hub; ambiguous files are never mixed."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from rollyard.records.data_files import INSTALLED
from rollyard.records.errors import OperatorError
from rollyard.resources_servers.dataset_sources import read_rows
from rollyard.resources_servers.gsm8k import prepare as gsm8k
from rollyard.services.datasets.splits import AmbiguousFiles, SplitSelection, by_names, select_files
from tests.support.fake_stores import store
from tests.support.stacks import read_rows as written_rows

CARD = """---
license: mit
configs:
- config_name: main
  data_files:
  - {split: train, path: main/train-*}
  - {split: test, path: [main/test-*]}
- config_name: socratic
  data_files: {train: socratic/train-*, test: socratic/test-*}
---
# Grade School Math
"""
PARTS = ("main/train", "main/test", "socratic/train", "socratic/test")


def clone(ending: str = "-00000-of-00001.jsonl") -> dict[str, bytes]:
    """The files of GSM8K on the hub, each with one row that names its subset and split."""
    return {f"{part}{ending}": orjson.dumps({"question": part, "answer": "#### 1"}) + b"\n" for part in PARTS}


def write_files(root: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


SIDECARS = {"dataset_infos.json": b"{}", ".git/config.json": b"{}", "r_status.json": b"{}", "r_failures.jsonl": b"{}\n"}
SIDECARS["r_manifest.json"] = b"{}"
SHAPES = {
    "with a card": {**clone(), "README.md": CARD.encode()},
    "without a card": clone(),
    "with sidecar files": {**clone(), **SIDECARS},
    "folders of splits": clone("/0000.jsonl"),
    "plain names": clone(".jsonl"),
    "compressed": {f"{name}.gz": gzip.compress(content) for name, content in clone(".jsonl").items()},
    "in a folder": {f"data/{name}": content for name, content in clone().items()},
}


SELECTIONS: list[tuple[list[str], list[str]]] = [
    ([], ["main/test"]),
    (["--split", "train"], ["main/train"]),
    (["--subset", "socratic"], ["socratic/test"]),
    (["--config", "socratic", "--split", "train"], ["socratic/train"]),
    (["--subset", "all", "--split", "test"], ["main/test", "socratic/test"]),
]
"""Options, and the rows that they select."""


@pytest.mark.parametrize(
    ("shape", "options", "found"),
    [
        (shape, *selection)
        for number, shape in enumerate(SHAPES)
        for selection in (SELECTIONS if number < 2 else (SELECTIONS[number % 5], SELECTIONS[(number + 2) % 5]))
    ],
)
def test_a_clone_yields_only_the_requested_split_and_subset(
    tmp_path: Path, shape: str, options: list[str], found: list[str]
) -> None:
    folder, out = write_files(tmp_path / "clone", SHAPES[shape]), tmp_path / "out.jsonl"
    gsm8k.main(["--local", str(folder), "--offline", "--output", str(out), *options])
    assert [row["question"] for row in written_rows(out)] == found


def test_s3_yields_the_same_rows_as_a_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {**clone(), "README.md": CARD.encode()}
    out = tmp_path / "out.jsonl"
    with store({f"bucket/set/{name}": file for name, file in files.items()}) as address:
        for name, value in {
            "AWS_ENDPOINT_URL_S3": address,
            "AWS_ACCESS_KEY_ID": "k",
            "AWS_SECRET_ACCESS_KEY": "s",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("boto3.DEFAULT_SESSION", None)
        gsm8k.main(["--s3", "s3://bucket/set/", "--offline", "--subset", "socratic", "--output", str(out)])
    assert [row["question"] for row in written_rows(out)] == ["socratic/test"]


def test_the_hub_yields_the_same_rows_as_a_clone(tmp_path: Path) -> None:
    """In a process of its own, because the hub's package reads its address when it is imported."""
    out = tmp_path / "out.jsonl"
    with store(clone()) as address:
        env = {**os.environ, "HF_ENDPOINT": address, "HF_HOME": str(tmp_path), "HF_HUB_DISABLE_XET": "1"}
        line = [sys.executable, "resources_servers/gsm8k/prepare.py", "--subset", "socratic", "--output", str(out)]
        env |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1"}
        done = subprocess.run(line, cwd=INSTALLED, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [row["question"] for row in written_rows(out)] == ["socratic/test"]


@pytest.mark.parametrize(
    ("files", "selection", "message"),
    [
        (list(clone()), SplitSelection(), r"main \(test, train\), socratic.*--subset"),
        (list(clone()), SplitSelection(subset="main"), r"main \(test, train\).*--split"),
        (list(clone()), SplitSelection(subset="mian"), r"'mian'.* main .*--subset"),
        (list(clone()), SplitSelection(split="dev", subset="main"), r"'dev'.* main \(test, train\)"),
        (["train.jsonl", "train_socratic.jsonl"], SplitSelection("train"), r"default \(train\), socratic \(train\)"),
        (["train.jsonl", "train.parquet"], SplitSelection(), r"train\.jsonl and train\.parquet"),
        (["train_test.jsonl"], SplitSelection("test"), r"train and test"),
        (["mbpp.jsonl", "sanitized-mbpp.json"], SplitSelection(), "--subset"),
    ],
)
def test_an_ambiguous_or_missing_split_is_rejected_with_the_choices_and_the_option(
    files: list[str], selection: SplitSelection, message: str
) -> None:
    with pytest.raises(AmbiguousFiles, match=message):
        select_files("clone", files, "", selection)


@pytest.mark.parametrize(
    ("card", "message"),
    [
        (CARD.replace("socratic", "main"), r"README\.md .*'main'"),
        (CARD.replace("main/", "old/").replace("socratic/", "old/"), r"none of .*README\.md"),
    ],
    ids=["duplicate name", "missing files"],
)
def test_a_card_that_contradicts_itself_or_its_folder_is_rejected(card: str, message: str) -> None:
    with pytest.raises(OperatorError, match=message):
        select_files("clone", list(clone()), card, SplitSelection("test", "main"))


def test_an_ambiguous_folder_does_not_fall_back_to_the_next_source(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "clone", dict.fromkeys(("a/test.jsonl", "b/test.jsonl"), b"{}\n"))
    with pytest.raises(OperatorError, match="--subset"):
        gsm8k.main(["--local", str(folder), "--s3", "s3://bucket/set/", "--output", str(tmp_path / "out.jsonl")])


def test_a_file_whose_name_contradicts_the_requested_split_is_rejected(tmp_path: Path) -> None:
    file = write_files(tmp_path, clone()) / "main/train-00000-of-00001.jsonl"
    line = ["--local", str(file), "--offline", "--output", str(tmp_path / "out.jsonl")]
    with pytest.raises(OperatorError, match=r"split train, .*--split is test"):
        gsm8k.main([*line, "--split", "test"])
    gsm8k.main(line)


@pytest.mark.parametrize(
    ("name", "subset", "split"),
    [
        ("data/train-00000-of-00001-a09b74b3ef9c3b56.parquet", "default", "train"),
        ("data/test_sft-00000-of-00003.parquet", "default", "test_sft"),
        ("full/prompt-00000-of-00001.parquet", "full", "prompt"),
        ("train/data-00000-of-00002.arrow", "default", "train"),
        ("MATH/test/algebra/17.json", "MATH/algebra", "test"),
        ("gsm8k.dev.jsonl.zst", "gsm8k", "validation"),
        ("algebra-eval.v2.jsonl", "algebra_v2", "test"),
        ("contest.jsonl", "contest", ""),
        ("part-00001-c000.snappy.parquet", "c000_snappy", ""),
        ("rows.jsonl", "default", ""),
    ],
)
def test_subset_and_split_are_derived_from_the_path(name: str, subset: str, split: str) -> None:
    assert by_names([name]) == {subset: {split: [name]}}


def test_files_without_a_split_are_ignored_next_to_files_with_one() -> None:
    names = ["train.jsonl", "test.jsonl", "example_solutions.jsonl"]
    assert by_names(names) == {"default": {"train": ["train.jsonl"], "test": ["test.jsonl"]}}


@pytest.mark.parametrize("content", [b'[{"n": 1}, {"n": 2}]', b'{"n": 1}\n{"n": 2}\n', b'[\n {"n": 1},\n {"n": 2}\n]'])
def test_a_json_file_may_be_a_list_or_lines(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "rows.json").write_bytes(content)
    assert [row["n"] for row in read_rows(tmp_path / "rows.json")] == [1, 2]
