"""Uploads that are interrupted: nothing unfinished looks complete, and another process repeats them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rollyard.launchers.evaluation.checkpoints import S3Source
from rollyard.launchers.sagemaker.container.inputs import S3Cache
from rollyard.launchers.sagemaker.container.uploader import RunUploader, S3Uploader
from rollyard.records.errors import OperatorError, RunError
from tests.external.aws.account import BUCKET, PREFIX, Account
from tests.external.aws.training_program import safetensors
from tests.support.waiting import deadline_s, eventually

PART = 5 * 1024 * 1024
"""The smallest part that S3 accepts."""
PROGRAM = """
import sys, boto3
from pathlib import Path
from rollyard.launchers.sagemaker.container.uploader import S3Uploader
from rollyard.launchers.sagemaker.container.uploader import RunUploader
client = boto3.client("s3")
run = RunUploader(Path(sys.argv[1]), sys.argv[2], S3Uploader(client, sys.argv[3], int(sys.argv[4])), 0.1, print)
run.start()
print(run.finish(100))
"""


def checkpoint(run: Path, step: int, size: int) -> Path:
    folder = run / "checkpoints" / f"step_{step}"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(safetensors(size))
    return folder


def address_of(name: str) -> str:
    return f"s3://{BUCKET}/{PREFIX}/checkpoints/{name}"


def run_uploader(
    account: Account, run: Path, name: str, lines: list[str] | None = None, client: Any = None
) -> RunUploader:
    uploader = S3Uploader(client or account.client("s3"), BUCKET, PART)
    return RunUploader(run, address_of(name), uploader, 0.1, print if lines is None else lines.append)


def test_an_upload_killed_in_the_middle_is_not_complete_and_is_repeated(
    account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "small_1"
    folder = checkpoint(run, 1, 5 * PART)
    # Each part takes a while, so that the process can be killed between two of them.
    for number in range(3, 7):
        account.fail(f"partNumber={number}", 503, "<Error><Code>SlowDown</Code></Error>", times=1, delay_s=1.5)
    environment = {**os.environ, "AWS_ENDPOINT_URL": account.url, "AWS_DEFAULT_REGION": "us-west-2"}
    environment |= {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
    address = address_of("killed")
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(run), address, BUCKET, str(PART)], env=environment)
    client = account.client("s3")

    def parts() -> int:
        uploads = client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", ())
        listed = [client.list_parts(Bucket=BUCKET, Key=one["Key"], UploadId=one["UploadId"]) for one in uploads]
        return max((len(one.get("Parts", ())) for one in listed), default=0)

    eventually("two parts", lambda: parts() >= 2)
    process.kill()
    process.wait()
    assert account.keys("checkpoints/killed/") == []
    for name, value in environment.items():
        if name.startswith("AWS_"):
            monkeypatch.setenv(name, value)
    assert S3Source(address, tmp_path / "copies").fetch("small_1_step1")[0] is None

    assert run_uploader(account, run, "killed").finish(deadline_s()) == ""
    weights = account.read("checkpoints/killed/small_1_step1/model.safetensors")
    assert weights == (folder / "model.safetensors").read_bytes()
    assert S3Source(address, tmp_path / "copies").fetch("small_1_step1")[0] is not None


def test_a_checkpoint_that_is_being_written_is_not_uploaded(account: Account, tmp_path: Path) -> None:
    run = tmp_path / "small_2"
    folder = checkpoint(run, 7, 1000)
    complete = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(complete[:500])
    (run / "traces").mkdir()
    (run / "traces/trace.jsonl").write_bytes(b'{"ts": 1}\n{"ts"')
    upload = run_uploader(account, run, "partial")
    upload.start()
    eventually("the trace", lambda: "traces/trace.jsonl" in account.keys("checkpoints/partial/"))
    assert account.read("checkpoints/partial/traces/trace.jsonl") == b'{"ts": 1}\n'
    assert [key for key in account.keys("checkpoints/partial/") if "step7" in key] == []
    (folder / "model.safetensors").write_bytes(complete)
    eventually("the checkpoint", lambda: "small_2_step7/COMPLETE.json" in account.keys("checkpoints/partial/"))
    assert upload.finish(deadline_s()) == ""
    assert account.read("checkpoints/partial/traces/trace.jsonl") == b'{"ts": 1}\n{"ts"', "the last line does not end"


def test_an_unreachable_s3_is_reported_and_the_next_search_succeeds(account: Account, tmp_path: Path) -> None:
    run = tmp_path / "small_3"
    checkpoint(run, 1, 1000)
    lines: list[str] = []
    account.fail("checkpoints/fault", 503, "<Error><Code>SlowDown</Code></Error>", times=3)
    assert run_uploader(account, run, "fault", lines).finish(deadline_s()) != ""
    assert any("throttled" in line for line in lines)
    assert run_uploader(account, run, "fault", lines).finish(deadline_s()) == ""


def test_a_checkpoint_that_is_written_again_is_uploaded_again_and_has_no_marker_meanwhile(
    account: Account, tmp_path: Path
) -> None:
    run = tmp_path / "small_4"
    folder = checkpoint(run, 1, 1000)
    assert run_uploader(account, run, "again").finish(deadline_s()) == ""
    changed = safetensors(1000)[:-1] + b"x"
    (folder / "model.safetensors").write_bytes(changed)
    seen: list[list[str]] = []
    client = account.client("s3")
    key = "small_4_step1/COMPLETE.json"
    client.meta.events.register("before-call.s3.PutObject", lambda **_: seen.append(account.keys("checkpoints/again/")))
    assert run_uploader(account, run, "again", client=client).finish(deadline_s()) == ""
    assert account.read("checkpoints/again/small_4_step1/model.safetensors") == changed
    assert len(seen) == 2 and not any(key in keys for keys in seen)
    assert key in account.keys("checkpoints/again/")


def test_an_object_that_is_encrypted_with_a_key_of_kms_is_not_taken_for_a_damaged_one(
    account: Account, tmp_path: Path
) -> None:
    client = account.client("s3")
    for name, more in (("plain", {}), ("kms", {"ServerSideEncryption": "aws:kms"})):
        client.put_object(Bucket=BUCKET, Key=f"{PREFIX}/models/{name}/config.json", Body=b"{}", **more)

    def other_etag(parsed: dict[str, Any], **_: Any) -> None:
        """With KMS, an ETag has the form of an MD5 sum, but is none; moto's is one."""
        for item in parsed.get("Contents", ()):
            item["ETag"] = f'"{"0" * 32}"'

    client.meta.events.register("after-call.s3.ListObjectsV2", other_etag)
    cache = S3Cache(tmp_path / "cache", lambda: client)
    copy = cache.get(f"s3://{BUCKET}/{PREFIX}/models/kms")
    assert copy is not None and (copy / "config.json").read_bytes() == b"{}"
    with pytest.raises(RunError, match="has the MD5 sum"):
        cache.get(f"s3://{BUCKET}/{PREFIX}/models/plain")


def test_a_copy_from_s3_is_complete_or_absent_and_follows_changes(account: Account, tmp_path: Path) -> None:
    account.put("datasets/copied_train/a.arrow", b"a" * 100)
    account.put("datasets/copied_train/deep/b.json", b"{}")
    account.put("datasets/copied_train-other/c", b"other")
    cache = S3Cache(tmp_path / "cache", lambda: account.client("s3"))
    address = f"s3://{BUCKET}/{PREFIX}/datasets/copied_train"
    copy = cache.get(address + "/")
    assert copy is not None and sorted(p.name for p in copy.rglob("*") if p.is_file()) == ["a.arrow", "b.json"]
    (copy / "a.arrow").unlink()  # a damaged copy is not used
    assert (cache.get(address) or tmp_path).joinpath("a.arrow").read_bytes() == b"a" * 100
    account.put("datasets/copied_train/a.arrow", b"new")
    assert (cache.get(address) or tmp_path).joinpath("a.arrow").read_bytes() == b"new"
    assert cache.get(f"s3://{BUCKET}/{PREFIX}/datasets/absent") is None
    account.put("curricula/order.txt", b"gsm8k_1\n")
    order = cache.get(f"s3://{BUCKET}/{PREFIX}/curricula/order.txt")
    assert order is not None and order.read_text() == "gsm8k_1\n"
    client = account.client("s3")
    client.put_object(Bucket=BUCKET, Key=f"{PREFIX}/datasets/bad/../../x", Body=b"x")
    with pytest.raises(OperatorError, match="file name"):
        cache.get(f"s3://{BUCKET}/{PREFIX}/datasets/bad")
