"""Rows from a local file, S3 or the hub, in that order, and never partially."""

from __future__ import annotations

import gzip
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rollyard.records.data_files import INSTALLED
from rollyard.records.errors import OperatorError, RunError
from rollyard.records.types import Json
from rollyard.resources_servers.dataset_sources import DataLocations, read_rows, rows_from, write_rows
from rollyard.services.datasets.splits import ALL, AmbiguousFiles, SplitSelection
from tests.support.fake_stores import store
from tests.unit.records.test_columns import save_to_disk

LINES = b'{"n": 1}\n\n{"n": 2, "text": "\xe2\x80\xa8"}\n'


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own = {"ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": "secret", "DEFAULT_REGION": "us-east-1", "MAX_ATTEMPTS": "1"}
    own |= dict.fromkeys(("CONFIG_FILE", "SHARED_CREDENTIALS_FILE"), str(tmp_path / "none"))
    for name, value in {**own, "EC2_METADATA_DISABLED": "true"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)


def read_numbers(locations: DataLocations, messages: list[str] | None = None) -> list[int]:
    selection = SplitSelection(default_subset=ALL)
    with rows_from(locations, selection, (messages if messages is not None else []).append) as rows:
        return [row["n"] for row in rows]


def test_rows_are_read_from_json_lines_lists_gzip_parquet_arrow_and_folders(tmp_path: Path) -> None:
    pa: Any = importlib.import_module("pyarrow")
    ipc: Any = importlib.import_module("pyarrow.ipc")
    parquet: Any = importlib.import_module("pyarrow.parquet")

    table = pa.table({"n": [1, 2]})
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + LINES)  # with a byte order mark
    (tmp_path / "b.json").write_bytes(b'\xef\xbb\xbf[{"n": 1}, {"n": 2}]')
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(LINES))
    parquet.write_table(table, tmp_path / "d.parquet")
    with ipc.new_stream(str(tmp_path / "e.arrow"), table.schema) as writer:
        writer.write_table(table)
    (tmp_path / "dataset_info.json").write_text("{}")
    (tmp_path / "README.md").write_text("no rows")
    for name in ("a.jsonl", "b.json", "c.jsonl.gz", "d.parquet", "e.arrow"):
        assert [row["n"] for row in read_rows(tmp_path / name)] == [1, 2], name
    assert [row["n"] for row in read_rows(tmp_path, SplitSelection(subset=ALL))] == [1, 2] * 5


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        *(("rows.jsonl", text, r": line \d") for text in (b"not json\n", b"[1, 2]\n", b'{"n": 1}\n{"n"')),
        *(("rows.json", b"[1", " is not valid JSON"), ("rows.json", b'[{"n": 1}, 2]', ": row 2 is")),
    ],
)
def test_a_file_that_is_not_data_is_rejected_by_name(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(OperatorError, match=f"{re.escape(name)}{message}"):
        list(read_rows(tmp_path / name))


def test_a_folder_without_rows_or_with_several_files_that_match_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="no file with one of the extensions"):
        list(read_rows(tmp_path))
    for name in ("train", "validation"):
        (tmp_path / f"{name}.jsonl").write_bytes(LINES)
    with pytest.raises(AmbiguousFiles, match="validation"), rows_from(DataLocations(tmp_path, "s3://bucket/unused")):
        pass


def test_the_local_file_comes_first_then_s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows.jsonl").write_bytes(b'{"n": 7}\n')
    with store({"bucket/data/rows.jsonl": LINES}) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", address)
        s3 = "s3://bucket/data/rows.jsonl"
        messages: list[str] = []
        assert read_numbers(DataLocations(tmp_path / "rows.jsonl", s3)) == [7]
        assert read_numbers(DataLocations(tmp_path / "missing.jsonl", s3), messages) == [1, 2]
        (message,) = messages
        assert str(tmp_path / "missing.jsonl") in message and s3 in message


def test_an_s3_prefix_gives_all_its_files_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"bucket/set/b.jsonl": b'{"n": 3}\n', "bucket/set/a.jsonl": LINES, "bucket/set/state.json": b"{}"}
    with store(files) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", address)
        assert read_numbers(DataLocations(s3="s3://bucket/set/")) == [1, 2, 3]
        with pytest.raises(OperatorError, match="prefix"):
            read_numbers(DataLocations(s3="s3://bucket/other/"))


def test_a_folder_of_save_to_disk_is_one_split_whatever_split_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_to_disk(tmp_path / "saved", [{"n": 1}], [{"n": 2}])
    selection = SplitSelection(split="test", default_subset="main")
    assert [row["n"] for row in read_rows(folder, selection)] == [1, 2]
    with store({f"bucket/gsm8k_test/{file.name}": file.read_bytes() for file in folder.iterdir()}) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", address)
        with rows_from(DataLocations(s3="s3://bucket/gsm8k_test/"), selection) as rows:
            assert [row["n"] for row in rows] == [1, 2]


def test_a_csv_file_is_read_unless_a_folder_has_rows_in_another_format(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("n\n1\n")
    (tmp_path / "dataset_info.json").write_text("{}")
    assert list(read_rows(tmp_path)) == [{"n": "1"}]
    (tmp_path / "train.jsonl").write_bytes(LINES)
    assert [row["n"] for row in read_rows(tmp_path)] == [1, 2]


def test_an_interrupted_download_yields_no_rows_and_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    key = "bucket/rows.jsonl"
    with store({key: LINES * 1000}, broken=frozenset({key})) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", address)
        with pytest.raises(RunError, match="no rows found"):
            read_numbers(DataLocations(s3=f"s3://{key}"))
    assert list(tmp_path.iterdir()) == []


def test_the_hub_comes_last(tmp_path: Path) -> None:
    code = (
        "from rollyard.resources_servers.dataset_sources import *\n"
        "from rollyard.services.datasets.splits import SplitSelection\n"
        "with rows_from(DataLocations(Path('missing.jsonl'), hub=Hub('a/b')), SplitSelection(split='test')) as rows:\n"
        "    print([row['n'] for row in rows])\n"
    )
    files = {"main/test-0.jsonl": LINES, "main/train-0.jsonl": b'{"n": 9}\n', "README.md": b"hm"}
    with store(files) as address:
        # The library reads its address once, when it is imported.
        env = {**os.environ, "HF_ENDPOINT": address, "HF_HOME": str(tmp_path), "HF_HUB_DISABLE_XET": "1"}
        env["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
        done = subprocess.run([sys.executable, "-c", code], cwd=INSTALLED, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[1, 2]"


def test_if_no_location_has_rows_every_reason_is_reported(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=r"missing\.jsonl.*s3://bucket"):
        read_numbers(DataLocations(tmp_path / "missing.jsonl", "s3://bucket"))
    with pytest.raises(OperatorError, match="--local"):
        read_numbers(DataLocations())


def test_rows_are_written_atomically(tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    assert write_rows(out, [{"n": 1}]) == 1

    def failing() -> list[Json]:
        raise ValueError("broken row")

    with pytest.raises(ValueError, match="broken"):
        write_rows(out, (row for _ in range(2) for row in failing()))
    with pytest.raises(OperatorError, match="no rows"):
        write_rows(out, [])
    assert out.read_bytes() == b'{"n":1}\n'
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]
