"""Compressed files, tables and s3://: the rows of a plain file, and never a part of them without a word."""

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

from rollyard.services.datasets.data_files import DataFiles
from rollyard.services.datasets.mixture import Mixture
from rollyard.services.datasets.rows import rows_of
from rollyard.services.datasets.settings import MixtureSettings
from rollyard.services.datasets.tasks import TaskFile
from rollyard.services.errors import OperatorError
from rollyard.services.server.settings import parse_settings
from rollyard.services.types import Json
from tests.support.fake_stores import store
from tests.unit.services.datasets.files import row, rows

zstd: Any = importlib.import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")

ROWS = rows("r", 500, note="√ \u2028 x", deep={"a": [1, None, 2.5]})
PLAIN = b"".join(orjson.dumps(one) + b"\n" for one in ROWS)
PACK: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstd.compress,
}
HALF = PLAIN.index(b"\n", len(PLAIN) // 2) + 1


def table(content: list[dict[str, Any]]) -> Any:
    return importlib.import_module("pyarrow").Table.from_pylist(content)


def packed(path: Path, form: str) -> Path:
    """The rows in a form."""
    if form in PACK:
        path.write_bytes(PACK[form](PLAIN))
    elif form == "parquet":
        importlib.import_module("pyarrow.parquet").write_table(table(ROWS), path)
    else:
        ipc = importlib.import_module("pyarrow.ipc")
        made = table(ROWS)
        with {"arrow": ipc.new_stream, "feather": ipc.new_file}[form](str(path), made.schema) as writer:
            writer.write_table(made)
    return path


def tasks(file: Any) -> TaskFile:
    return TaskFile(file, agent="player", limit=None)


def mixed(root: Path, path: str) -> Mixture:
    given = {"datasets": [{"name": "r", "path": path, "where": {}}]}
    return Mixture(parse_settings(MixtureSettings, given, "data"), DataFiles([root]), agent="player")


@pytest.mark.parametrize("form", [*PACK, "parquet", "arrow", "feather"])
@pytest.mark.parametrize("named", ["rows.jsonl", "rows.{}"])
def test_the_rows_of_a_packed_file_are_the_plain_files_rows_and_the_same_input(
    tmp_path: Path, form: str, named: str
) -> None:
    (tmp_path / "plain.jsonl").write_bytes(PLAIN)
    plain, other = tasks(tmp_path / "plain.jsonl"), tasks(packed(tmp_path / named.format(form), form))
    assert [one.row for one in other.rollouts(1)] == ROWS
    if form in PACK:  # a table has an order of fields of its own
        assert other.identity == plain.identity
    assert len(list(mixed(tmp_path, named.format(form)).row_refs())) == 500


@pytest.mark.parametrize("form", [*PACK, "parquet"])
def test_a_mixture_finds_the_rows_of_packed_files_again(tmp_path: Path, form: str) -> None:
    (tmp_path / "plain.jsonl").write_bytes(PLAIN)
    packed(tmp_path / "packed", form)
    plain, other = mixed(tmp_path, "plain.jsonl"), mixed(tmp_path, "packed")
    assert list(other.rows()) == list(plain.rows())
    assert (other.digest == plain.digest) == (form in PACK)


@pytest.mark.parametrize("form", PACK)
def test_members_one_after_the_other_are_one_content(tmp_path: Path, form: str) -> None:
    pack = PACK[form]
    (tmp_path / "rows").write_bytes(pack(PLAIN[:HALF]) + pack(b"") + pack(PLAIN[HALF:]))
    assert tasks(tmp_path / "rows").count == 500


@pytest.mark.parametrize("form", PACK)
def test_a_member_that_is_cut_off_is_refused_with_how_many_rows_were_read(tmp_path: Path, form: str) -> None:
    whole, second = PACK[form](PLAIN[:HALF]), PACK[form](PLAIN[HALF:])
    (tmp_path / "rows").write_bytes(whole + second[:-9])
    with pytest.raises(OperatorError, match=r"rows is truncated: .* after (\d+) complete lines") as told:
        tasks(tmp_path / "rows")
    assert PLAIN[:HALF].count(b"\n") <= int(str(told.value).partition(" after ")[2].split()[0]) <= 500


@pytest.mark.parametrize("form", PACK)
@pytest.mark.parametrize("spoil", ["garbage", "flipped"])
def test_damage_and_what_is_no_member_are_refused(tmp_path: Path, form: str, spoil: str) -> None:
    content = bytearray(PACK[form](PLAIN))
    if spoil == "garbage":
        content += b"no member"
    else:
        content[len(content) // 2] ^= 0xFF
    (tmp_path / "rows").write_bytes(content)
    with pytest.raises(OperatorError, match="rows"):
        tasks(tmp_path / "rows")


def test_a_wrong_row_of_a_packed_file_is_named_by_its_line(tmp_path: Path) -> None:
    (tmp_path / "rows.gz").write_bytes(gzip.compress(PLAIN[:HALF] + b"{broken\n"))
    with pytest.raises(OperatorError, match=rf"rows\.gz: line {PLAIN[:HALF].count(bytes([10])) + 1} is not JSON"):
        tasks(tmp_path / "rows.gz")


def test_a_package_that_is_missing_is_named_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed(tmp_path / "rows.zst", "zst")
    monkeypatch.setitem(sys.modules, "backports.zstd", None)
    with pytest.raises(OperatorError, match=r"pip install 'rollyard\[zstd\]'"):
        tasks(tmp_path / "rows.zst")


def test_memory_does_not_grow_with_what_a_file_holds(tmp_path: Path) -> None:
    """64 MB of one line's worth of zero bytes and 64 MB of rows: read in pieces."""
    import tracemalloc

    line = orjson.dumps(row("x" * 10_000)) + b"\n"
    (tmp_path / "rows.zst").write_bytes(zstd.compress(line * 6_400))
    tracemalloc.start()
    assert sum(1 for _ in rows_of(tmp_path / "rows.zst")) == 6_400
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
    made = [one.value["responses_create_params"] for one in rows_of(tmp_path / "rows.parquet")]
    assert made == [{"input": [message], "temperature": 0.5}, {"input": [{**message, "name": "a"}]}]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), b"bytes"])
def test_a_value_of_a_table_that_json_lacks_is_refused_by_its_row(tmp_path: Path, value: Any) -> None:
    content: list[Json] = [row("a", v=None), row("b", v=value)]
    importlib.import_module("pyarrow.parquet").write_table(table(content), tmp_path / "rows.parquet")
    with pytest.raises(OperatorError, match=r"rows\.parquet.* row 2"):
        tasks(tmp_path / "rows.parquet")


@pytest.mark.parametrize("more", ['"seed": 1, "seed": 2', '"seed": 18446744073709551616', '"x": 0.1234567890123456789'])
def test_a_request_that_a_table_holds_as_text_is_kept_exactly_or_refused(tmp_path: Path, more: str) -> None:
    texts = ['{"input": "a", "seed": 18446744073709551615}', f'{{"input": "a", {more}}}']
    content = [{"responses_create_params": text} for text in texts]
    write_table = importlib.import_module("pyarrow.parquet").write_table
    write_table(table(content[:1]), tmp_path / "rows.parquet")
    assert [one.value["responses_create_params"]["seed"] for one in rows_of(tmp_path / "rows.parquet")] == [2**64 - 1]
    write_table(table(content), tmp_path / "rows.parquet")
    with pytest.raises(OperatorError, match=r"rows\.parquet.* row 2: "):
        tasks(tmp_path / "rows.parquet")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"PK\x03\x04" + bytes(40), "a zip archive"),
        (gzip.compress(gzip.compress(PLAIN, mtime=0), mtime=0), "compressed data; expected JSON Lines"),
        (gzip.compress(b"PAR1" + bytes(40) + b"PAR1", mtime=0), "a compressed Parquet file"),
    ],
)
def test_a_file_that_holds_another_file_is_named_as_what_it_is(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "rows.jsonl").write_bytes(content)
    assert said in next(rows_of(tmp_path / "rows.jsonl")).problem


@pytest.fixture
def signed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "k",
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr("boto3.DEFAULT_SESSION", None)


@pytest.mark.usefixtures("signed")
@pytest.mark.parametrize("form", ["plain", "gz", "zst"])
def test_rows_at_s3_are_read_without_leaving_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with store({"bucket/a//rows.jsonl": PLAIN if form == "plain" else PACK[form](PLAIN)}) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", address)
        found = tasks(DataFiles([]).get("s3://bucket/a//rows.jsonl"))
        mixture = mixed(tmp_path, "s3://bucket/a//rows.jsonl")
        assert not list(tmp_path.iterdir())
    assert [one.row for one in found.rollouts(1)] == ROWS
    assert len(list(mixture.rows())) == 500 and mixture.files == set()


@pytest.mark.usefixtures("signed")
def test_an_object_that_is_not_there_or_breaks_off_is_told_by_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    with store({"bucket/rows.jsonl": PLAIN}, broken=frozenset({"bucket/rows.jsonl"})) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", address)
        for key in ("rows.jsonl", "none.jsonl"):
            with pytest.raises(OperatorError, match=rf"s3://bucket/{key} cannot be read"):
                DataFiles([]).get(f"s3://bucket/{key}")


@pytest.mark.parametrize("ending", ["_status.json", "_manifest.json", "_metrics.json", "_failures.jsonl"])
def test_a_collections_side_file_is_no_data_set(tmp_path: Path, ending: str) -> None:
    for name in ("r_manifest.json", f"r{ending}", f"hard{ending}"):
        (tmp_path / name).write_bytes(PLAIN)
    with pytest.raises(OperatorError, match=f"r{ending} contains .* of a collection, not rows"):
        DataFiles([tmp_path]).get(f"r{ending}")
    if ending != "_manifest.json":
        assert tasks(DataFiles([tmp_path]).get(f"hard{ending}")).count == 500
