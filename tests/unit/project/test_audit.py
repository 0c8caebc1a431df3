"""`make audit`: what it finds in locks, licences, vendored files, pages and advisories."""

from __future__ import annotations

import datetime
import hashlib
import importlib.util
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.modules import ROOT

TODAY = datetime.date(2026, 11, 30)
HASH = f"    --hash=sha256:{'0' * 64}\n"
ADVISORY = {
    "id": "PYSEC-1",
    "modified": "2026-11-29T00:00:00Z",
    "affected": [
        {
            "package": {"ecosystem": "PyPI", "name": "One_Package"},
            "ranges": [
                {"type": "GIT", "events": [{"introduced": "0"}]},
                {"type": "ECOSYSTEM", "events": [{"introduced": "1.2"}, {"fixed": "1.10"}, {"introduced": "2.0"}]},
            ],
            "versions": ["0.9"],
        }
    ],
}
OLD = json.dumps({**ADVISORY, "modified": "2024-10-10T00:00:00Z"})


@pytest.fixture(scope="module")
def audit() -> Iterator[ModuleType]:
    """requirements/audit.py, which is not part of any package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "requirements"))
        spec = importlib.util.spec_from_file_location("audit", ROOT / "requirements" / "audit.py")
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        patch.setitem(sys.modules, "audit", module)
        spec.loader.exec_module(module)
        yield module
    sys.modules.pop("subset", None)


@pytest.mark.parametrize(
    "line",
    [
        "one @ https://example.org/one-1.tar.gz",
        "--index-url https://example.org/simple",
        "--find-links /wheels",
        "-e .",
        "one>=1",
        "one==1 --hash=md5:0",
        "git+https://example.org/one",
    ],
)
def test_a_lock_holds_nothing_but_pinned_versions_and_hashes(audit: ModuleType, tmp_path: Path, line: str) -> None:
    (tmp_path / "a.lock").write_text(f"two==1 ; sys_platform == 'linux' \\\n{HASH}    # via three\n{line}\n")
    (problem,) = audit.unpinned(tmp_path, {})
    assert problem.startswith("a.lock:4:") and line in problem


def test_a_version_without_a_hash_is_named(audit: ModuleType, tmp_path: Path) -> None:
    entries = audit.subset.parse_lock(f"one==1 \\\n{HASH}two==2\n")
    assert list(audit.unpinned(tmp_path, {"a": entries})) == ["a.lock: two==2 has no hash"]


def test_a_lock_of_npm_has_a_hash_for_each_package_and_no_address(audit: ModuleType, tmp_path: Path) -> None:
    packages = {
        "": {},
        "hashed": {"integrity": "sha512-x"},
        "unhashed": {},
        "weak": {"integrity": "sha1-x", "optional": True, "os": ["linux"], "cpu": ["x64"]},
        "of_another_system": {"optional": True, "os": ["win32"]},
        "with_address": {"integrity": "sha512-x", "resolved": "https://example.org"},
    }
    path = tmp_path / "package-lock.json"
    path.write_text(json.dumps({"packages": packages}))
    named = [problem.split()[1] for problem in audit.unpinned_npm(path)]
    assert named == ["unhashed", "weak", "with_address"]


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT", True),
        ("GPL-3.0-only", False),
        ("MIT OR GPL-3.0-only", True),
        ("MIT AND GPL-3.0-only", False),
        ("MIT AND (Apache-2.0 WITH LLVM-exception OR GPL-3.0-only)", True),
        ("mit AND (isc or (apache-2.0))", True),
        ("MIT OR GPL-3.0-only AND GPL-3.0-only", True),
        ("(MIT OR GPL-3.0-only) AND GPL-3.0-only", False),
        ("", False),
        ("True", False),
        ("MIT OR", False),
        ("MIT (MIT)", False),
        ("__import__('os')", False),
    ],
)
def test_a_licence_is_allowed_if_all_parts_of_an_and_and_one_of_an_or_are(
    audit: ModuleType, expression: str, allowed: bool
) -> None:
    assert audit.permitted(expression, ["MIT", "Apache-2.0"]) is allowed


def test_the_extras_for_users_are_those_that_the_readme_lists(audit: ModuleType) -> None:
    rows = re.findall(r"^\| (`.+`) \| .+ \|$", (ROOT / "README.md").read_text().partition("| extra |")[2], re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"`([\w-]+)`", row)}
    assert listed == {*audit.extras_for_users(), *audit.IN_OTHER_LOCKS}


def test_every_extra_that_is_in_no_other_lock_is_in_the_main_one(audit: ModuleType) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert audit.subset.main(sorted(extras.keys() - audit.IN_OTHER_LOCKS))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"License-Expression": "MIT AND ISC", "License": "BSD"}, "MIT AND ISC"),
        ({"License": "Apache License, Version 2.0"}, "Apache-2.0"),
        ({"License": "BSD", "Classifier": "License :: OSI Approved :: BSD License"}, "LicenseRef-BSD"),
        ({"License": "Copyright 2020\nsomebody", "Classifier": "License :: OSI Approved :: MIT License"}, "MIT"),
        ({"License": "see the file"}, ""),
        ({}, ""),
    ],
)
def test_the_licence_of_a_package_is_read_from_old_and_new_metadata(
    audit: ModuleType, fields: dict[str, str], expected: str
) -> None:
    assert audit.licence(metadata(fields)) == expected


def metadata(fields: dict[str, str]) -> Message:
    message = Message()
    for name, text in fields.items():
        message[name] = text
    return message


def licence_problems(audit: ModuleType, record: dict[str, str], installed: dict[str, Message]) -> list[str]:
    lists: dict[str, Any] = {"exceptions": {"odd": "why"}, "stated": {}, "not_on_linux": ["win"]}
    policy = {"licences": {"allowed": ["MIT"], "allowed_in_tests": ["LGPL-2.1-only"], **lists}}
    pins = {"user==1", "tool==1", "odd==1", "win==1"}
    return list(audit.licence_problems(pins, {"user==1", "odd==1"}, record, installed, policy))


def test_what_users_install_is_held_to_a_stricter_list_than_what_tests_do(audit: ModuleType) -> None:
    record = {"user==1": "LGPL-2.1-only", "tool==1": "LGPL-2.1-only", "odd==1": "GPL-3.0-only"}
    (problem,) = licence_problems(audit, record, {})
    assert problem.startswith("user==1: LGPL-2.1-only is not allowed")


def test_a_licence_that_is_missing_obsolete_or_other_than_the_metadata_is_named(audit: ModuleType) -> None:
    record = {"user==1": "MIT", "odd==1": "GPL-3.0-only", "gone==1": "MIT"}
    problems = licence_problems(audit, record, {"user==1": metadata({"License": "ISC"})})
    assert [problem.split()[0].rstrip(":") for problem in problems] == ["tool==1", "user==1", "gone==1"]


def vendored(folder: Path, digest: str, licence: str = "MIT") -> Path:
    (folder / "vendor").mkdir()
    (folder / "vendor" / "lib.js").write_text("1")
    (folder / "vendor" / "README.md").write_text(f"| `lib.js` | `lib` | 1.0 | `a.js` | {licence} | `{digest}` |\n")
    return folder / "vendor"


def test_a_vendored_file_has_its_checksum_and_an_allowed_licence(audit: ModuleType, tmp_path: Path) -> None:
    folder = vendored(tmp_path, hashlib.sha256(b"1").hexdigest())
    assert list(audit.vendor_problems(folder, ["MIT"])) == []
    assert len(list(audit.vendor_problems(folder, ["ISC"]))) == 1
    (folder / "lib.js").write_text("2")
    (folder / "font.woff2").write_text("")
    problems = list(audit.vendor_problems(folder, ["MIT"]))
    assert ["font.woff2" in problems[0], "sha256" in problems[1]] == [True, True] and len(problems) == 2


def test_a_vendored_file_that_is_gone_is_named(audit: ModuleType, tmp_path: Path) -> None:
    folder = vendored(tmp_path, "0" * 64)
    (folder / "lib.js").unlink()
    (problem,) = audit.vendor_problems(folder, ["MIT"])
    assert "lib.js" in problem


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.html", '<script src="https://example.org/a.js">'),
        ("a.html", "<link rel=stylesheet href=//example.org/a.css>"),
        ("a.css", "@font-face { src: url(https://example.org/a.woff2) }"),
        ("a.css", '@import "http://example.org/a.css";'),
        ("a.js", "import { h } from 'https://example.org/h.js';"),
        ("a.js", "const page = await import(`https://example.org/h.js`);"),
        ("a.js", "fetch('https://example.org/data')"),
        ("a.woff2", ""),
    ],
)
def test_a_page_loads_nothing_from_another_host(audit: ModuleType, tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / "own.js").write_text("import { h } from './vendor/h.js'; // https://example.org explains it")
    assert list(audit.page_problems(tmp_path)) == []
    (tmp_path / name).write_text(text)
    (problem,) = audit.page_problems(tmp_path)
    assert name in problem


@pytest.mark.parametrize(
    ("version", "affected"),
    [("0.9", True), ("1.1", False), ("1.2", True), ("1.9", True), ("1.10", False), ("1.99", False), ("2.0+cpu", True)],
)
def test_an_advisory_affects_the_versions_that_it_lists_and_those_in_its_ranges(
    audit: ModuleType, tmp_path: Path, version: str, affected: bool
) -> None:
    (tmp_path / "a.json").write_text(json.dumps(ADVISORY))
    found = list(audit.read(tmp_path, {f"one-package=={version}", "two==1.5"}, TODAY))
    assert [(advisory.id, advisory.pin) for advisory in found] == [("PYSEC-1", f"one-package=={version}")] * affected


def test_other_files_beside_advisories_are_left_out(audit: ModuleType, tmp_path: Path) -> None:
    for name, content in {"a": ADVISORY, "list": [ADVISORY], "index": {"modified": "2026-11-30"}}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    (tmp_path / "folder.json").mkdir()
    assert len(list(audit.read(tmp_path, {"one-package==1.5"}, TODAY))) == 1


def test_a_limit_of_a_range_is_no_version(audit: ModuleType) -> None:
    part = {"ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "2"}, {"limit": "*"}]}]}
    assert [audit.affects(part, version) for version in ("1", "2")] == [True, False]


def test_advisories_of_pypa_are_read_from_yaml(audit: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / "vulns" / "one-package"
    folder.mkdir(parents=True)
    (folder / "PYSEC-1.yaml").write_text(audit.yaml.safe_dump(ADVISORY, sort_keys=False))
    (advisory,) = audit.read(tmp_path, {"one-package==1.5"}, TODAY)
    assert advisory.fixed == "1.10"


def test_a_withdrawn_advisory_affects_nothing(audit: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({**ADVISORY, "withdrawn": "2026-11-01T00:00:00Z"}))
    assert list(audit.read(tmp_path, {"one-package==1.5"}, TODAY)) == []


@pytest.mark.parametrize(
    "content",
    [
        None,
        "{}",
        "[]",
        "{",
        '{"id": "PYSEC-1", "modified": "2026-11-29", "affected": [{}]}',
        json.dumps({**ADVISORY, "modified": "2024-10-10T00:00:00Z"}),
    ],
)
def test_no_advisories_or_only_old_ones_are_not_taken_for_an_answer(
    audit: ModuleType, tmp_path: Path, content: str | None
) -> None:
    folder = tmp_path / "absent"
    if content:
        folder.mkdir()
        (folder / "a.json").write_text(content)
    with pytest.raises(audit.NoAdvisories, match="absent"):
        list(audit.read(folder, {"one-package==1.1"}, TODAY))


def test_an_accepted_advisory_needs_a_reason_and_is_named_again_after_its_date(audit: ModuleType) -> None:
    found = [audit.Advisory(name, "one==1", "2") for name in ("A-1", "A-2", "A-3", "A-5")]
    accepted = {
        "A-1": {"reason": "r", "review": TODAY},
        "A-2": {"reason": "r", "review": TODAY - datetime.timedelta(1)},
        "A-4": {"reason": "r", "review": TODAY},
        "A-5": {"reason": "r"},
    }
    problems = audit.advisory_problems(found, {"advisories": accepted}, TODAY)
    assert [name for problem in problems for name in re.findall(r"A-\d", problem)] == ["A-2", "A-3", "A-5", "A-4"]


def test_the_checkout_passes(audit: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["audit.py", "--advisories", "none"])
    monkeypatch.setattr(audit, "installed", lambda environments: {})  # they may be in the making
    assert audit.main() == 0


def test_advisories_that_cannot_be_had_end_it_with_exit_status_2(
    audit: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["audit.py", "--advisories", str(tmp_path)])
    monkeypatch.setattr(audit, "installed", lambda environments: {})
    assert audit.main() == 2
    assert "NOT CHECKED" in capsys.readouterr().out
