"""Checks what Rollyard installs and ships: hashes, licences, vendored files, and advisories of the locked versions.

    python requirements/audit.py                        # asks for advisories through pip-audit
    python requirements/audit.py --advisories FOLDER    # reads them: a clone of pypa/advisory-database, or OSV's files
    python requirements/audit.py --advisories none      # leaves them out, and says so
    python requirements/audit.py --write                # records the licences of the packages that are installed here

requirements/audit.toml is the policy: which licences are allowed and why, and which advisories are accepted until when.
requirements/licences.txt records the licence of each locked package, as stated by its metadata; a package that is
installed here must still state the same.

Exit status: 0 nothing found, 1 something found, 2 advisories could not be checked.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Collection, Iterable, Iterator
from email.message import Message
from email.parser import HeaderParser
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import subset
import yaml
from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.version import InvalidVersion, Version

ROOT = subset.FOLDER.parent
RECORD = subset.FOLDER / "licences.txt"
POLICY = subset.FOLDER / "audit.toml"
NPM_LOCKS = ("tests/viewer_js/package-lock.json", "tests/external/programs/package-lock.json")
PAGES = ("analysis/viewer/static", "analysis/report", "analysis/charts")
"""What browsers get."""
TEST_LOCKS = {"envs", "trainers", "trainer-sources", "nemo-gym", "nemo-gym07", "nemo-gym07-source"}
"""Locks of environments in which only tests run. The others also hold what users' extras bring."""
TEST_EXTRAS = {"dev", "docs", "browser", "deploy", "fuzz", "moto", "rotel", "release"}
IN_OTHER_LOCKS = {"convert", "inspect", "train", "verifiers", "vllm"}
"""Extras for users whose packages are in locks of their own, together with those of tests."""
STALE_DAYS = 30
"""How old the newest advisory may be: several are published each week."""
LOCK_LINE = re.compile(r"[\w.-]+==[^\s;@/]+( ; [^\\/]+)?( \\)?|    --hash=sha256:[0-9a-f]{64}( \\)?|    # via .*")
SPELLINGS = {
    "Apache-2.0": r"(the )?apache([ -]license)?(,? version)?[ -]?(2(\.0)?)?( license)?|apache software license",
    "MIT": r"(the )?mit([ -]license)?( \(mit\))?",
    "BSD-3-Clause": r"(the )?(bsd[ -]3-clause|3-clause bsd)( license)?",
    "BSD-2-Clause": r"(the )?(bsd[ -]2-clause|2-clause bsd)( license)?",
    "LicenseRef-BSD": r"bsd( license)?",
    "ISC": r"isc( license)?( \(iscl\))?",
    "MPL-2.0": r"mozilla public license 2\.0 \(mpl 2\.0\)",
    "PSF-2.0": r"python software foundation license|psfl?",
    "LGPL-2.1-or-later": r"gnu lesser general public license v2 or later \(lgplv2\+\)",
    "LGPL-3.0-or-later": r"gnu lesser general public license v3 or later \(lgplv3\+\)",
    "Unlicense": r"the unlicense \(unlicense\)",
    "LicenseRef-Public-Domain": r"public domain",
}
"""How metadata written before PEP 639 spell what SPDX calls so. Without a number of clauses, BSD stays BSD."""
REMOTE = re.compile(
    r"""(?:\b(?:src|href)\s*=\s*["'`]?|url\(\s*["']?|@import\s+["']|\bfrom\s+["']|\bimport\s*\(?\s*["'`]|\bfetch\(\s*["'`])"""
    r"""(?:https?:)?//"""
)
"""What makes a browser load something from another host."""


class Advisory(NamedTuple):
    id: str
    pin: str
    fixed: str
    """Versions without it; empty if there is none."""


class NoAdvisories(Exception):
    """Advisories could not be read; the message says why and what to do."""


def pin_of(entry: subset.Entry) -> str:
    name, _, version = entry.pin.partition("==")
    return f"{subset.normalized(name)}=={version}"


def hashes(entry: subset.Entry) -> list[str]:
    return re.findall(r"--hash=sha256:([0-9a-f]{64})", entry.text)


def locks() -> dict[str, list[subset.Entry]]:
    """Locks by name, each with the hashes that it takes from all.lock."""
    names = sorted(path.stem for path in subset.FOLDER.glob("*.lock"))
    texts = {name: subset.main(["--lock", name]) for name in names}
    return {name: subset.parse_lock(text) for name, text in texts.items()}


def unpinned(folder: Path, entries: dict[str, list[subset.Entry]]) -> Iterator[str]:
    """Requirements without a hash, and lines that name where to download."""
    for name, listed in entries.items():
        yield from (f"{name}.lock: {entry.pin} has no hash" for entry in listed if not hashes(entry))
    for path in sorted(folder.glob("*.lock")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if not LOCK_LINE.fullmatch(line):
                yield f"{path.name}:{number}: {line.strip()!r} is neither a pinned version nor its hash"


def unpinned_npm(path: Path) -> Iterator[str]:
    for name, entry in json.loads(path.read_text())["packages"].items():
        # npm records no hash of an optional package that it could not get; it is not one that x86-64 Linux installs.
        foreign = "linux" not in entry.get("os", ["linux"]) or "x64" not in entry.get("cpu", ["x64"]) or "libc" in entry
        if name and not entry.get("integrity", "").startswith("sha512-") and not (entry.get("optional") and foreign):
            yield f"{path.name}: {name} has no sha512"
        if "resolved" in entry:
            yield f"{path.name}: {name} names where to download: {entry['resolved']}"


def extras_for_users() -> list[str]:
    """Extras whose packages are in all.lock, except those for tests, documentation and releases."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return sorted(project["optional-dependencies"].keys() - TEST_EXTRAS - IN_OTHER_LOCKS)


def runtime_pins(entries: dict[str, list[subset.Entry]]) -> set[str]:
    """What users install: the core and the extras that are for them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    users = {entry.name for entry in subset.select(entries["all"], subset.root_packages(project, extras_for_users()))}
    tools = {entry.name for entry in entries["all"]} - users
    kept = (entry for name, listed in entries.items() if name not in TEST_LOCKS for entry in listed)
    return {pin_of(entry) for entry in kept if entry.name not in tools}


def installed(environments: Iterable[Path]) -> dict[str, Message]:
    """Metadata of the packages in the environments of this checkout, by name and version."""
    found = {}
    for folder in environments:
        for path in folder.glob("lib/python*/site-packages/*.dist-info/METADATA"):
            metadata = HeaderParser().parsestr(path.read_text(errors="replace"))
            found[f"{subset.normalized(metadata['Name'])}=={metadata['Version']}"] = metadata
    return found


def licence(metadata: Message) -> str:
    """The SPDX expression that a package states, also in words; empty if it states none."""
    if expression := metadata["License-Expression"]:
        return str(expression)
    stated = (metadata["License"] or "").strip().splitlines()
    classifiers = [str(text).rpartition(" :: ")[2] for text in metadata.get_all("Classifier") or []
                   if str(text).startswith("License :: ")]  # fmt: skip
    specific = [text for text in (spdx(stated[0]) if stated else "", *map(spdx, classifiers)) if text]
    return next((text for text in specific if text != "LicenseRef-BSD"), specific[0] if specific else "")


def spdx(text: str) -> str:
    for name, spelling in SPELLINGS.items():
        if re.fullmatch(spelling, text.strip().lower()):
            return name
    try:
        return canonicalize_license_expression(text)
    except InvalidLicenseExpression:
        return ""


def permitted(expression: str, allowed: Iterable[str]) -> bool:
    """Whether a licence is allowed: all parts of an AND, one of an OR. An exception (WITH) only adds permissions."""
    try:
        text = re.sub(r" WITH [^\s()]+", "", canonicalize_license_expression(expression))
    except InvalidLicenseExpression:
        return False
    names = {*allowed, "True"}  # which is no licence, and stands for brackets whose content is allowed

    def met(alternatives: str) -> bool:
        return any(names.issuperset(parts.split(" AND ")) for parts in alternatives.split(" OR "))

    while "(" in text:
        text = re.sub(r"\(([^()]+)\)", lambda brackets: str(met(brackets[1])), text)
    return met(text)


def recorded() -> dict[str, str]:
    text = RECORD.read_text() if RECORD.exists() else ""
    rows = (line.partition("\t") for line in text.splitlines() if line and not line.startswith("#"))
    return {pin: expression for pin, _, expression in rows}


def licence_problems(
    pins: set[str], runtime: set[str], record: dict[str, str], here: dict[str, Message], policy: dict[str, Any]
) -> Iterator[str]:
    """`here`: the metadata of what is installed. Packages that no Linux installs are named in the policy."""
    allowed = set(policy["licences"]["allowed"])
    in_tests = allowed | set(policy["licences"]["allowed_in_tests"])
    exempt = policy["licences"]["exceptions"]
    stated = policy["licences"]["stated"]
    for pin in sorted(pins):
        name = pin.partition("==")[0]
        if name in policy["licences"]["not_on_linux"]:
            continue
        if pin not in record:
            yield f"{pin}: no licence in {RECORD.name}; install its environment, then run make licences"
            continue
        if name not in stated and pin in here and (now := licence(here[pin])) != record[pin]:
            yield f"{pin}: {RECORD.name} says {record[pin]!r}, its metadata {now!r}; run make licences"
        if name not in exempt and not permitted(record[pin], allowed if pin in runtime else in_tests):
            where = "a dependency of users" if pin in runtime else "only in tests"
            yield f"{pin}: {record[pin]} is not allowed ({where}); replace it, or allow it in {POLICY.name}"
    names = {pin.partition("==")[0] for pin in pins}
    for name in sorted((exempt.keys() | stated.keys() | set(policy["licences"]["not_on_linux"])) - names):
        yield f"{name} is in {POLICY.name} and in no lock: remove it"
    for pin in sorted(record.keys() - pins):
        yield f"{pin} is in {RECORD.name} and in no lock; run make licences"


def vendor_problems(folder: Path, allowed: Iterable[str]) -> Iterator[str]:
    """What differs between the files of a folder `vendor` and the table in its README.md."""
    row = re.compile(r"^\| `([^`]+)` \| .+ \| ([\d.]+) \| .+ \| ([^|]+) \| `([0-9a-f]{64})` \|$", re.MULTILINE)
    listed = {name: (licences, digest) for name, _, licences, digest in row.findall((folder / "README.md").read_text())}
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    for name in sorted(listed.keys() - found.keys()):
        yield f"{folder.name}/{name} is in the table of its README.md and does not exist"
    for name, path in sorted(found.items()):
        if name == "README.md" or name.endswith("LICENSE.txt"):
            continue
        if name not in listed:
            yield f"{folder.name}/{name} is not in the table of its README.md: version, licence and sha256"
            continue
        licences, digest = listed[name]
        if (now := hashlib.sha256(path.read_bytes()).hexdigest()) != digest:
            yield f"{folder.name}/{name} has sha256 {now}, its README.md says {digest}"
        if not all(permitted(text.split("(")[0].strip(), allowed) for text in licences.split(",")):
            yield f"{folder.name}/{name}: {licences} is not allowed"


def page_problems(folder: Path) -> Iterator[str]:
    """What a browser would load from another host, and fonts and scripts that no table names."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        if "vendor" in path.parts:
            continue
        if path.suffix in {".woff", ".woff2", ".ttf", ".otf", ".wasm", ".map"} or path.name.endswith(".min.js"):
            yield f"{path}: third-party files belong in a folder vendor, with version, licence and sha256"
        elif path.suffix in {".js", ".css", ".html", ".py"}:
            for found in REMOTE.finditer(path.read_text()):
                yield f"{path}: {found[0]!r} loads from another host"


def query(pins: set[str]) -> Iterator[Advisory]:
    """Advisories that pip-audit gets from the package index. Raises `NoAdvisories` unless it got an answer for each."""
    plain = sorted({re.sub(r"\+.*", "", pin) for pin in pins})  # a build such as torch's +cpu has those of its version
    versions: dict[str, list[str]] = {}
    for pin in plain:
        versions.setdefault(pin.partition("==")[0], []).append(pin)
    while versions:  # one version of each package at a time, because pip-audit refuses two
        batch = [pending.pop() for pending in versions.values()]
        versions = {name: pending for name, pending in versions.items() if pending}
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write("\n".join(batch))
            file.flush()
            command = [
                "pip-audit",
                "-r",
                file.name,
                "--no-deps",
                "--disable-pip",
                "-f",
                "json",
                "--progress-spinner",
                "off",
            ]
            program = ROOT / ".venv-release" / "bin" / command[0]
            try:
                done = subprocess.run([program, *command[1:]], capture_output=True, text=True, check=False)
            except FileNotFoundError:
                raise NoAdvisories(f"{program} does not exist: run make audit, which installs it") from None
        try:
            answers = json.loads(done.stdout)["dependencies"]
        except ValueError:
            raise NoAdvisories(
                f"pip-audit got no answer: {(done.stderr.strip().splitlines() or ['no output'])[-1]}"
            ) from None
        if unanswered := [answer for answer in answers if "skip_reason" in answer]:
            number, reason = len(unanswered), unanswered[0]["skip_reason"]
            raise NoAdvisories(f"pip-audit got no answer for {number} of {len(answers)} packages: {reason}")
        for answer in answers:
            for found in answer["vulns"]:
                yield Advisory(found["id"], f"{answer['name']}=={answer['version']}", ", ".join(found["fix_versions"]))


def read(folder: Path, pins: set[str], today: datetime.date) -> Iterator[Advisory]:
    """Advisories in a folder, in OSV's format. Raises `NoAdvisories` if there are none, or only old ones."""
    versions: dict[str, set[str]] = {}
    for pin in pins:
        name, _, version = pin.partition("==")
        versions.setdefault(name, set()).add(version)
    newest, count = "", 0
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        try:
            modified, entry = parse(path, versions.keys())
            if modified:
                newest, count = max(newest, modified), count + 1
            found = [] if entry is None else [*affected(entry, versions)]
        except (AttributeError, KeyError, TypeError, ValueError, yaml.YAMLError) as error:
            raise NoAdvisories(f"{path} is no advisory in OSV's format: {error!r}") from None
        yield from found
    if not count:
        raise NoAdvisories(f"{folder} holds no advisories: expected OSV's YAML or JSON files")
    print(f"  advisories: {count}, the newest of {newest}")
    if (age := (today - datetime.date.fromisoformat(newest)).days) > STALE_DAYS:
        raise NoAdvisories(f"{folder} ends {age} days ago; newer advisories are missing, so update it")


def parse(path: Path, names: Collection[str]) -> tuple[str, dict[str, Any] | None]:
    """The day on which an advisory was changed, empty for another file; and the advisory, if it may concern `names`."""
    if path.suffix == ".json":
        entry = json.loads(path.read_text())
        if not isinstance(entry, dict) or "id" not in entry:
            return "", None
        return str(entry.get("modified", ""))[:10], entry
    if path.suffix != ".yaml" or not (
        found := re.search(r"^modified: ['\"]?([\d-]{10})", text := path.read_text(), re.M)
    ):
        return "", None
    if subset.normalized(path.parent.name) not in names:
        return found[1], None  # their files are in a folder of the package's name; YAML is slow to read
    return found[1], yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def affected(entry: dict[str, Any], versions: dict[str, set[str]]) -> Iterator[Advisory]:
    """An advisory, once for each version that it affects."""
    for part in entry.get("affected", ()) if not entry.get("withdrawn") else ():
        name = subset.normalized(part["package"]["name"])
        if part["package"]["ecosystem"] == "PyPI":
            for version in sorted(versions.get(name, ())):
                if affects(part, version):
                    yield Advisory(entry["id"], f"{name}=={version}", ", ".join(fixes(part)))


def events(part: dict[str, Any]) -> Iterator[list[tuple[str, str]]]:
    for span in part.get("ranges", ()):
        if span["type"] == "ECOSYSTEM":
            yield [(kind, str(version)) for event in span["events"] for kind, version in event.items()]


def fixes(part: dict[str, Any]) -> list[str]:
    return [version for span in events(part) for kind, version in span if kind == "fixed"]


def affects(part: dict[str, Any], version: str) -> bool:
    """Whether an advisory lists a version, or it lies in one of its ranges."""
    wanted = Version(version.partition("+")[0])
    if any(same(str(listed), wanted) for listed in part.get("versions", ())):
        return True
    for span in events(part):
        inside = False
        bounds = [(Version(bound), kind) for kind, bound in span if kind in {"introduced", "fixed", "last_affected"}]
        for at, kind in sorted(bounds, key=itemgetter(0)):
            if kind == "introduced" and wanted >= at:
                inside = True
            elif (kind == "fixed" and wanted >= at) or (kind == "last_affected" and wanted > at):
                inside = False
        if inside:
            return True
    return False


def same(listed: str, wanted: Version) -> bool:
    try:
        return Version(listed) == wanted
    except InvalidVersion:
        return False


def advisory_problems(
    found: Iterable[Advisory], policy: dict[str, Any], today: datetime.date, *, complete: bool = True
) -> Iterator[str]:
    """Advisories that are not accepted, or no longer, and acceptances without an advisory if `found` is complete."""
    accepted = policy["advisories"]
    seen = set()
    for advisory in found:
        seen.add(advisory.id)
        entry = accepted.get(advisory.id)
        if entry is None:
            name = advisory.pin.partition("==")[0]
            fixed = f"fixed in {advisory.fixed}: make lock UPGRADE={name}" if advisory.fixed else "fixed nowhere"
            yield f"{advisory.pin}: {advisory.id}, {fixed}; or accept it in {POLICY.name}: reason and date of review"
        elif not (entry.get("reason") and type(entry.get("review")) is datetime.date):
            yield f"{advisory.id} in {POLICY.name} needs a reason and a date of review, such as review = {today}"
        elif entry["review"] < today:
            yield f"{advisory.pin}: {advisory.id} was accepted until {entry['review']} ({entry['reason']}); review it"
    for name in sorted(accepted.keys() - seen) if complete else ():
        yield f"{name} in {POLICY.name} affects no locked version: remove it"


def write(pins: set[str], here: dict[str, Message], policy: dict[str, Any]) -> None:
    """Record what is installed; what is not installed keeps its line."""
    known = recorded()
    stated = policy["licences"]["stated"]
    rows = {}
    for pin in sorted(pins):
        name = pin.partition("==")[0]
        if text := stated.get(name) or (licence(here[pin]) if pin in here else known.get(pin)):
            rows[pin] = text
    header = "# The licence of each locked package, by its metadata. Written by: make licences\n"
    RECORD.write_text(header + "".join(f"{pin}\t{text}\n" for pin, text in rows.items()))
    print(f"{RECORD.relative_to(ROOT)}: {len(rows)} of {len(pins)} packages")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--advisories", help="a folder of advisories, or `none`; otherwise pip-audit asks for them")
    parser.add_argument("--write", action="store_true", help="record the licences of what is installed")
    options = parser.parse_args()
    try:
        policy = tomllib.loads(POLICY.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        parser.error(f"{POLICY}: {error}")
    entries = locks()
    pins = {pin_of(entry) for listed in entries.values() for entry in listed}
    here = installed(path for path in ROOT.glob(".venv*") if path.suffix != ".building")
    if options.write:
        write(pins, here, policy)
    runtime, allowed, today = runtime_pins(entries), policy["licences"]["allowed"], datetime.date.today()
    checks = {
        "hashes": [*unpinned(subset.FOLDER, entries), *(p for name in NPM_LOCKS for p in unpinned_npm(ROOT / name))],
        "licences": [*licence_problems(pins, runtime, recorded(), here, policy)],
        "vendored files": [
            *vendor_problems(ROOT / PAGES[0] / "vendor", allowed),
            *(problem for name in PAGES for problem in page_problems(ROOT / name)),
        ],
    }
    print(f"{len(pins)} locked packages, {len(runtime)} of them for users; {len(pins & here.keys())} installed here")
    unknown = ""
    if options.advisories == "none":
        print("  advisories: left out")
    else:
        found: list[Advisory] = []
        try:
            for advisory in read(Path(options.advisories), pins, today) if options.advisories else query(pins):
                found.append(advisory)
        except NoAdvisories as error:
            unknown = str(error)
        checks["advisories"] = [*advisory_problems(found, policy, today, complete=not unknown)]
    for name, problems in checks.items():
        if problems or name != "advisories" or not unknown:
            print(f"  {name}: {len(problems) or 'no'} problem{'s' * (len(problems) != 1)}")
        for problem in problems:
            print(f"    {problem}")
    if unknown:
        print(
            f"  advisories: NOT CHECKED. {unknown}\n"
            "    Give a folder: a clone of github.com/pypa/advisory-database, or OSV's PyPI files, unpacked:\n"
            "    make audit ADVISORIES=folder. ADVISORIES=none leaves them out."
        )
    return 1 if any(checks.values()) else 2 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
