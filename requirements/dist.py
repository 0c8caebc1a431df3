"""Builds the wheel, the sdist and the bills of materials of the last commit, bit for bit the same wherever it is built.

    python requirements/dist.py

It builds what is committed, in a folder of its own, with the commit's time as the time of every file. The bills of
materials (CycloneDX) list the core, and the core with each extra that requirements/all.lock holds: sbom/core.cdx.json,
sbom/aws.cdx.json and so on. Hashes are those of the lock, licences those of requirements/licences.txt.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

import audit
import subset
from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

DISTRIBUTION = ExternalReferenceType.DISTRIBUTION


def git(*words: str) -> bytes:
    done = subprocess.run(["git", "-C", str(audit.ROOT), *words], capture_output=True, check=False)
    if done.returncode:
        sys.exit(f"error: make dist builds the last commit of a git checkout: {done.stderr.decode().strip()}")
    return done.stdout


def build(source: Path, output: Path, kind: str) -> Path:
    """Build a wheel or an sdist with setuptools; the variables of this process are those of the build."""
    code = f"from setuptools import build_meta; print(build_meta.build_{kind}({str(output)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"error: setuptools built no {kind}:\n{done.stderr}")
    return output / done.stdout.splitlines()[-1]


def normalize(sdist: Path, epoch: int) -> None:
    """Pack an sdist again, sorted, with one time and owner: setuptools takes them from the machine that builds."""
    with tarfile.open(sdist) as packed:
        members = [(member, packed.extractfile(member) if member.isfile() else None) for member in packed]
        content = io.BytesIO()
        with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for member, data in sorted(members, key=lambda item: item[0].name):
                plain = tarfile.TarInfo(member.name)
                plain.type, plain.size, plain.linkname, plain.mtime = member.type, member.size, member.linkname, epoch
                plain.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
                archive.addfile(plain, data)
    with sdist.open("wb") as file, gzip.GzipFile("", "wb", 9, file, epoch) as compressed:
        compressed.write(content.getvalue())


def bill(entries: list[subset.Entry], extra: str, version: str, wheel: Path, epoch: int) -> str:
    """A bill of materials in JSON."""
    licences, record = LicenseFactory(), audit.recorded()
    own = PackageURL("pypi", name="rollyard", version=version, qualifiers={"extra": extra} if extra else None)
    root = Component(
        name=f"rollyard[{extra}]" if extra else "rollyard", version=version, type=ComponentType.APPLICATION,
        purl=own, bom_ref=str(own), licenses=[licences.make_from_string("Apache-2.0")],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=hashlib.sha256(wheel.read_bytes()).hexdigest())],
    )  # fmt: skip
    components = {}
    for entry in entries:
        name, _, number = audit.pin_of(entry).partition("==")
        purl = PackageURL("pypi", name=name, version=number)
        files = [HashType(alg=HashAlgorithm.SHA_256, content=digest) for digest in audit.hashes(entry)]
        stated = record.get(audit.pin_of(entry))
        if stated is None:
            sys.exit(f"error: {audit.RECORD.name} lacks {audit.pin_of(entry)}: run make licences")
        components[name] = Component(
            name=name, version=number, type=ComponentType.LIBRARY, purl=purl, bom_ref=str(purl),
            licenses=[licences.make_from_string(stated)],
            # The lock has one hash for each file of a release, of which an installation takes one.
            external_references=[ExternalReference(type=DISTRIBUTION, url=XsUri(str(purl)), hashes=files)],
        )  # fmt: skip
    bom = Bom(components=components.values(), serial_number=uuid5(NAMESPACE_URL, f"{own}#{epoch}"),
              metadata=BomMetaData(component=root, timestamp=datetime.fromtimestamp(epoch, UTC)))  # fmt: skip
    direct = [components[entry.name] for entry in entries if "rollyard (pyproject.toml)" in entry.parents]
    bom.register_dependency(root, direct)
    for name, component in components.items():
        bom.register_dependency(component, [components[entry.name] for entry in entries if name in entry.parents])
    return JsonV1Dot6(bom).output_as_string(indent=2) + "\n"


def bills(project: dict[str, dict[str, object]], version: str, wheel: Path, epoch: int) -> dict[str, str]:
    """Bills of materials by file name. Raises SystemExit if one is not valid by CycloneDX' schema."""
    policy = tomllib.loads(audit.POLICY.read_text())
    locked = [entry for entry in subset.parse_lock((subset.FOLDER / "all.lock").read_text())
              if entry.name not in policy["licences"]["not_on_linux"]]  # fmt: skip
    runtime = {**project, "build-system": {"requires": []}}  # what builds it is not in it
    validator, texts = JsonStrictValidator(SchemaVersion.V1_6), {}
    for extra in ("", *audit.extras_for_users()):
        chosen = subset.select(locked, subset.root_packages(runtime, [extra] if extra else []))
        text = texts[f"{extra or 'core'}.cdx.json"] = bill(chosen, extra, version, wheel, epoch)
        if problem := validator.validate_str(text):
            sys.exit(f"error: the bill of materials of {extra or 'the core'} is not valid: {problem}")
    return texts


def main() -> None:
    epoch = int(git("log", "-1", "--format=%ct"))
    if changed := git("status", "--porcelain").decode().splitlines():
        print(f"dist: builds the last commit, without {len(changed)} changed files, such as {changed[0][3:]}")
    os.umask(0o022)
    os.environ.update(SOURCE_DATE_EPOCH=str(epoch), LC_ALL="C.UTF-8", TZ="UTC")
    with tempfile.TemporaryDirectory() as folder:
        source, built = Path(folder, "rollyard"), Path(folder, "dist")
        with tarfile.open(fileobj=io.BytesIO(git("-c", "tar.umask=0022", "archive", "--format=tar", "HEAD"))) as packed:
            packed.extraction_filter = getattr(tarfile, "data_filter", None)  # Python has it since 3.11.4
            packed.extractall(source)
        (built / "sbom").mkdir(parents=True)
        wheel, sdist = build(source, built, "wheel"), build(source, built, "sdist")
        normalize(sdist, epoch)
        project = tomllib.loads((source / "pyproject.toml").read_text())
        for name, text in bills(project, str(project["project"]["version"]), wheel, epoch).items():
            (built / "sbom" / name).write_text(text)
        output = audit.ROOT / "dist"
        shutil.rmtree(output, ignore_errors=True)
        shutil.copytree(built, output)
    for path in sorted(path for path in output.rglob("*") if path.is_file()):
        print(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(output)}")


if __name__ == "__main__":
    main()
