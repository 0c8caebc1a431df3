"""Compressed files, tables and s3:// yield the rows of the plain file; truncation is always reported."""

from __future__ import annotations

import bz2
import gzip
import importlib
import lzma
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from rollyard.records.data_files import DataFiles
from rollyard.records.errors import OperatorError
from rollyard.records.rows import rows_of
from rollyard.records.types import Json
from rollyard.services.datasets.mixture import Mixture, TaskFile
from tests.support.fake_stores import store
from tests.unit.records.test_columns import save_to_disk
from tests.unit.services.datasets.files import mixture, row, rows

zstd: Any = importlib.import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")

ROWS = rows("r", 500, note="√ \u2028 x", deep={"a": [1, None, 2.5]})
PLAIN = b"".join(orjson.dumps(line) + b"\n" for line in ROWS)
PACK: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstd.compress,
}
HALF = PLAIN.index(b"\n", len(PLAIN) // 2) + 1


def table(content: list[dict[str, Any]]) -> Any:
    return importlib.import_module("pyarrow").Table.from_pylist(content)


def write_packed(path: Path, file_format: str) -> Path:
    if file_format in PACK:
        path.write_bytes(PACK[file_format](PLAIN))
    elif file_format == "parquet":
        importlib.import_module("pyarrow.parquet").write_table(table(ROWS), path)
    else:
        ipc = importlib.import_module("pyarrow.ipc")
        rows_table = table(ROWS)
        with {"arrow": ipc.new_stream, "feather": ipc.new_file}[file_format](str(path), rows_table.schema) as writer:
            writer.write_table(rows_table)
    return path


def tasks(file: Any) -> TaskFile:
    return TaskFile(file, agent="agent", limit=None)


def mixture_of(root: Path, path: str) -> Mixture:
    return mixture(root, {"name": "r", "path": path, "where": {}})


@pytest.mark.parametrize(
    ("file_format", "named"),
    [(one, "rows.{}") for one in (*PACK, "parquet", "arrow", "feather")]
    + [("gz", "rows.jsonl"), ("arrow", "rows.jsonl")],
)
def test_a_packed_file_has_the_rows_and_the_identity_of_the_plain_file(
    tmp_path: Path, file_format: str, named: str
) -> None:
    (tmp_path / "plain.jsonl").write_bytes(PLAIN)
    plain, other = (
        tasks(tmp_path / "plain.jsonl"),
        tasks(write_packed(tmp_path / named.format(file_format), file_format)),
    )
    assert [rollout.row for rollout in other.rollouts(1)] == ROWS
    if file_format in PACK:  # a table orders its fields differently
        assert other.identity == plain.identity
    mixtures = [mixture_of(tmp_path, name) for name in ("plain.jsonl", named.format(file_format))]
    assert list(mixtures[0].rows()) == list(mixtures[1].rows())
    assert (mixtures[0].digest == mixtures[1].digest) == (file_format in PACK)


@pytest.mark.parametrize("file_format", PACK)
def test_concatenated_members_are_read_as_one_file(tmp_path: Path, file_format: str) -> None:
    pack = PACK[file_format]
    (tmp_path / "rows").write_bytes(pack(PLAIN[:HALF]) + pack(b"") + pack(PLAIN[HALF:]))
    assert tasks(tmp_path / "rows").count == 500


@pytest.mark.parametrize("file_format", PACK)
def test_a_truncated_member_is_rejected_with_the_number_of_rows_read(tmp_path: Path, file_format: str) -> None:
    whole, second = PACK[file_format](PLAIN[:HALF]), PACK[file_format](PLAIN[HALF:])
    (tmp_path / "rows").write_bytes(whole + second[:-9])
    with pytest.raises(OperatorError, match=r"rows is truncated: .* after \d+ ") as raised:
        tasks(tmp_path / "rows")
    assert PLAIN[:HALF].count(b"\n") <= int(str(raised.value).partition(" after ")[2].split()[0]) <= 500


@pytest.mark.parametrize(
    ("file_format", "damage"),
    [*((one, "flipped byte") for one in PACK), ("gz", "trailing garbage"), ("zst", "trailing garbage")],
)
def test_damaged_compressed_files_are_rejected(tmp_path: Path, file_format: str, damage: str) -> None:
    content = bytearray(PACK[file_format](PLAIN))
    if damage == "trailing garbage":
        content += b"garbage"
    else:
        content[len(content) // 2] ^= 0xFF
    (tmp_path / "rows").write_bytes(content)
    with pytest.raises(OperatorError, match="rows"):
        tasks(tmp_path / "rows")


def test_memory_does_not_grow_with_the_decompressed_size(tmp_path: Path) -> None:
    """Reads 32 MB of rows in chunks."""
    import tracemalloc

    line = orjson.dumps(row("x" * 10_000)) + b"\n"
    (tmp_path / "rows.zst").write_bytes(zstd.compress(line * 3_200))
    tracemalloc.start()
    assert sum(1 for _ in rows_of(tmp_path / "rows.zst")) == 3_200
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8_000_000


def test_absent_fields_of_a_request_stay_absent_in_a_table(tmp_path: Path) -> None:
    message = {"role": "user", "content": "hi"}
    content: list[Json] = [
        {"responses_create_params": {"input": [message], "temperature": 0.5}},
        {"responses_create_params": {"input": [{**message, "name": "a"}], "temperature": None}},
    ]
    importlib.import_module("pyarrow.parquet").write_table(table(content), tmp_path / "rows.parquet")
    params = [row.value["responses_create_params"] for row in rows_of(tmp_path / "rows.parquet")]
    assert params == [{"input": [message], "temperature": 0.5}, {"input": [{**message, "name": "a"}]}]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), b"bytes"])
def test_a_table_value_that_json_cannot_represent_is_rejected_with_its_row(tmp_path: Path, value: Any) -> None:
    content: list[Json] = [row("a", v=None), row("b", v=value)]
    importlib.import_module("pyarrow.parquet").write_table(table(content), tmp_path / "rows.parquet")
    with pytest.raises(OperatorError, match=r"rows\.parquet.* row 2"):
        tasks(tmp_path / "rows.parquet")


@pytest.mark.parametrize("more", ['"seed": 1, "seed": 2', '"seed": 18446744073709551616', '"x": 0.1234567890123456789'])
def test_a_request_stored_as_text_in_a_table_is_read_exactly_or_rejected(tmp_path: Path, more: str) -> None:
    texts = ['{"input": "a", "seed": 18446744073709551615}', f'{{"input": "a", {more}}}']
    content = [{"responses_create_params": text} for text in texts]
    write_table = importlib.import_module("pyarrow.parquet").write_table
    write_table(table(content[:1]), tmp_path / "rows.parquet")
    assert [row.value["responses_create_params"]["seed"] for row in rows_of(tmp_path / "rows.parquet")] == [2**64 - 1]
    write_table(table(content), tmp_path / "rows.parquet")
    with pytest.raises(OperatorError, match=r"rows\.parquet.* row 2: "):
        tasks(tmp_path / "rows.parquet")


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"PK\x03\x04" + bytes(40), "a zip archive"),
        (gzip.compress(gzip.compress(PLAIN, mtime=0), mtime=0), "compressed data"),
        (gzip.compress(b"PAR1" + bytes(40) + b"PAR1", mtime=0), "a compressed Parquet file"),
    ],
)
def test_a_file_in_another_format_is_identified(tmp_path: Path, content: bytes, kind: str) -> None:
    (tmp_path / "rows.jsonl").write_bytes(content)
    assert kind in next(rows_of(tmp_path / "rows.jsonl")).problem


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION", "AWS_MAX_ATTEMPTS")
    for name, value in zip(names, ("k", "s", "us-east-1", "1"), strict=True):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("boto3.DEFAULT_SESSION", None)


@pytest.mark.usefixtures("credentials")
@pytest.mark.parametrize("file_format", ["plain", "zst"])
def test_rows_in_s3_are_read_without_a_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_format: str
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with store({"bucket/a//rows.jsonl": PLAIN if file_format == "plain" else PACK[file_format](PLAIN)}) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", address)
        found = tasks(DataFiles([]).get("s3://bucket/a//rows.jsonl"))
        mix = mixture_of(tmp_path, "s3://bucket/a//rows.jsonl")
        assert not list(tmp_path.iterdir())
    assert [rollout.row for rollout in found.rollouts(1)] == ROWS
    assert len(list(mix.rows())) == 500 and mix.files == set()


@pytest.mark.usefixtures("credentials")
def test_a_folder_of_save_to_disk_in_s3_is_read_in_the_order_of_its_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_to_disk(tmp_path / "saved", ROWS[:300], ROWS[300:])
    objects = {f"bucket/datasets/r_train/{file.name}": file.read_bytes() for file in folder.iterdir()}
    with store(objects) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", address)
        found = tasks(DataFiles([]).get("s3://bucket/datasets/r_train/"))
        with pytest.raises(OperatorError, match=r"s3://bucket/datasets/.*the folder of one split"):
            DataFiles([]).get("s3://bucket/datasets/")
    assert [rollout.row for rollout in found.rollouts(1)] == ROWS


@pytest.mark.usefixtures("credentials")
def test_a_missing_or_interrupted_object_is_named_by_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    with store({"bucket/rows.jsonl": PLAIN}, broken=frozenset({"bucket/rows.jsonl"})) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", address)
        for key in ("rows.jsonl", "none.jsonl"):
            with pytest.raises(OperatorError, match=rf"s3://bucket/{key} "):
                DataFiles([]).get(f"s3://bucket/{key}")


@pytest.mark.parametrize(
    "ending", ["_status.json", "_manifest.json", "_metrics.json", "_failures.jsonl", "_notes.jsonl"]
)
def test_a_collections_sidecar_file_is_rejected_as_a_dataset(tmp_path: Path, ending: str) -> None:
    for name in ("r_manifest.json", f"r{ending}", f"hard{ending}"):
        (tmp_path / name).write_bytes(PLAIN)
    with pytest.raises(OperatorError, match=f"r{ending} .*collection"):
        DataFiles([tmp_path]).get(f"r{ending}")
    if ending != "_manifest.json":
        assert tasks(DataFiles([tmp_path]).get(f"hard{ending}")).count == 500
