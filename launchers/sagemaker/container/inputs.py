"""JobInputs: puts the project's files, the model, the data and the configs onto this host.

In a config, the model's path, addresses of data and the output folder are replaced; everything else stays as it is. The
YAML is parsed to find the values. Only their text is replaced, so that comments, quotes and number formats remain.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import orjson
import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from rollyard.launchers.sagemaker.job_parameters import JobEnvironment, JobParameters
from rollyard.launchers.sagemaker.source_bundle import unpack
from rollyard.records import s3
from rollyard.records.errors import OperatorError, RunError
from rollyard.records.locked_files import sync_folder, write_synced
from rollyard.records.s3 import AwsError, aws_errors
from rollyard.records.types import Record


@dataclass(frozen=True)
class JobInputs:
    environment: JobEnvironment
    parameters: JobParameters
    client: Callable[[], Any]
    """Returns boto3's S3 client; called only if something is in S3, because that needs credentials."""
    print_line: Callable[[str], None]

    def fetch_source(self) -> None:
        """Unpack the source bundle, unless the image or a mount already has the project's files."""
        code, address = self.environment.code, self.parameters.sagemaker_submit_directory
        if address is None or (code.is_dir() and any(code.iterdir())):
            return
        bucket, key = s3.split(address)
        with tempfile.TemporaryFile() as archive:
            with aws_errors(f"{address} cannot be read"):
                self.client().download_fileobj(bucket, key, archive)
            archive.seek(0)
            unpack(archive, code)
        self.print_line(f"source {address}: {code}")

    def rewritten(self, config: str, output_dir: Path, *, evaluation: bool) -> Path:
        """Return the path of the config with its paths replaced. It keeps its name.

        `evaluation`: the config gets `output_dir` if it has none, because ng_eval needs one.

        Raises OperatorError if it cannot be read, or if its model or data cannot be found.
        """
        original = self.environment.code / config
        try:
            text = original.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise OperatorError(f"the config {original} cannot be read: {error}") from error
        resolvers = Resolvers(self._model, self._data, output_dir, self.parameters.model_source)
        # Two folders: the configs of training and evaluation may have the same name.
        target = self.environment.work / ("eval_configs" if evaluation else "configs") / original.name
        target.parent.mkdir(parents=True, exist_ok=True)
        rewritten = rewrite(text, config, resolvers)
        target.write_text(with_output_dir(rewritten, output_dir) if evaluation else rewritten)
        return target

    def _model(self, path: str, source: str | Any) -> str:
        models = f"{self.parameters.s3}/models" if self.parameters.s3 else None
        model_source = DownloadedModel(self.environment.code, models, self._cache("models"), self.print_line)
        return model_source.resolve(path, source)

    def _data(self, address: str) -> str:
        """Return the local copy of `s3://bucket/key`, an object or a folder."""
        copy = self._cache("data").get(address)
        if copy is None:
            raise OperatorError(f"{address} does not exist in S3. Upload the data before the job is submitted")
        self.print_line(f"data {address}: {copy}")
        return str(copy)

    def _cache(self, name: str) -> S3Cache:
        return S3Cache(self.environment.work / name, self.client)


MODEL_KEYS = (
    *("path", "model", "model_path", "name_or_path", "model_name_or_path", "pretrained_model_name_or_path"),
    *("tokenizer", "tokenizer_path", "hf_assets_path"),
)
"""Keys whose value is replaced if it equals the model's path."""
DATA_KEYS = ("data", "sft_data", "input_jsonl_fpath")
"""Top-level keys below which values of the form s3://... are data."""
SERVED = "vllm/"
"""`model: vllm/Qwen/Qwen3-4B` in the config of an evaluation: the model that it serves."""

_PROPERTIES = re.compile(r"(?:[&!]\S*\s+)+")


@dataclass(frozen=True)
class Resolvers:
    model: Callable[[str, str | Sequence[str]], str]
    """Path and source of a model -> where it is."""
    data: Callable[[str], str]
    output_dir: Path
    """Replaces `output_dir`, because a folder inside the project would be lost with the job."""
    model_source: str | None = None


def rewrite(text: str, name: str, resolvers: Resolvers) -> str:
    """Return the config with its paths replaced. Raises OperatorError if it is not a YAML mapping."""
    tree = _parsed(text, name)
    edits = {node.start_mark.index: (node, value) for node, value in _replacements(tree, resolvers)}
    for start in sorted(edits, reverse=True):
        node, value = edits[start]
        text = _replaced(text, node, value)
    return text


def check_config(file: Path, name: str) -> None:
    """Raise OperatorError if a job could not use the config, before an instance is started for it."""
    try:
        tree = _parsed(file.read_text(encoding="utf-8"), name)
    except (OSError, UnicodeDecodeError) as error:
        raise OperatorError(f"{name} cannot be read: {error}") from error
    _source_order(_source(_items(tree).get("model")))


def run_name(file: Path) -> str | None:
    """Return `run.name` of a config; None if it has none, or cannot be read, which `rewrite` reports."""
    try:
        run = _items(_parsed(file.read_text(encoding="utf-8"), file.name)).get("run")
    except (OSError, UnicodeDecodeError, OperatorError):
        return None
    name = _items(run).get("name") if isinstance(run, MappingNode) else None
    return name.value or None if isinstance(name, ScalarNode) and name.tag.endswith(":str") else None


def with_output_dir(text: str, output_dir: Path) -> str:
    """Return the config with `output_dir` as its first key, unless it has one."""
    tree = yaml.compose(text, Loader=yaml.SafeLoader)
    if not isinstance(tree, MappingNode) or "output_dir" in _items(tree):
        return text
    setting = f"output_dir: {json.dumps(str(output_dir))}"
    if not tree.value:
        return f"{setting}\n"
    first = tree.value[0][0].start_mark
    separator = ", " if tree.flow_style else "\n" + " " * first.column
    return f"{text[: first.index]}{setting}{separator}{text[first.index :]}"


def _parsed(text: str, name: str) -> MappingNode:
    try:
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise OperatorError(f"{name} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(tree, MappingNode):
        raise OperatorError(f"{name} is not a YAML mapping")
    return tree


def _replacements(tree: MappingNode, resolvers: Resolvers) -> Iterator[tuple[ScalarNode, str]]:
    top = _items(tree)
    source = resolvers.model_source or _source(top.get("model"))
    for key in DATA_KEYS:
        for _, node in _scalars(top.get(key), key):
            if node.value.startswith(s3.SCHEME):
                yield node, resolvers.data(node.value)
    output = top.get("output_dir")
    if isinstance(output, ScalarNode) and not output.value.startswith(s3.SCHEME):
        yield output, str(resolvers.output_dir)
    for path in _models(top):
        found = resolvers.model(path, source)
        for key, node in _scalars(tree, ""):
            if key in MODEL_KEYS and node.value == path:
                yield node, found
            elif key == "model" and node.value == SERVED + path:
                yield node, SERVED + found


def _models(top: dict[str, Node]) -> list[str]:
    """Return the model paths of a config, in the formats of training and of evaluations."""
    paths = []
    model = top.get("model")
    if isinstance(model, MappingNode) and isinstance(path := _items(model).get("path"), ScalarNode):
        paths.append(path.value)
    elif isinstance(model, ScalarNode) and model.value.startswith(SERVED):
        paths.append(model.value.removeprefix(SERVED))
    if isinstance(checkpoints := top.get("checkpoints"), SequenceNode):
        found = (_items(item).get("path") for item in checkpoints.value if isinstance(item, MappingNode))
        paths += [node.value for node in found if isinstance(node, ScalarNode)]
    return list(dict.fromkeys(paths))


def _source(model: Node | None) -> str | list[str]:
    source = _items(model).get("source") if isinstance(model, MappingNode) else None
    if isinstance(source, SequenceNode):
        return [str(item.value) for item in source.value]
    return source.value if isinstance(source, ScalarNode) else "auto"


def _items(node: MappingNode) -> dict[str, Node]:
    return {key.value: value for key, value in node.value if isinstance(key, ScalarNode)}


def _scalars(node: Node | None, key: str) -> Iterator[tuple[str, ScalarNode]]:
    """Yield all scalars with the key that they belong to; the items of a list belong to the list's key."""
    if isinstance(node, ScalarNode):
        yield key, node
    elif isinstance(node, SequenceNode):
        for item in node.value:
            yield from _scalars(item, key)
    elif isinstance(node, MappingNode):
        for name, value in node.value:
            yield from _scalars(value, str(name.value))


def _replaced(text: str, node: ScalarNode, value: str) -> str:
    """Replace the text of one value. A JSON string is a YAML string, whatever it contains."""
    old = text[node.start_mark.index : node.end_mark.index]
    kept = found[0] if (found := _PROPERTIES.match(old)) else ""  # an anchor, which aliases refer to
    end = "\n" if node.style in ("|", ">") else ""
    return f"{text[: node.start_mark.index]}{kept}{json.dumps(value)}{end}{text[node.end_mark.index :]}"


SOURCES = ("local", "s3", "hub")
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


@dataclass(frozen=True)
class DownloadedModel:
    """Resolves model paths, in the order that the config states."""

    code: Path
    """Relative paths start there."""
    models: str | None
    """s3://bucket/prefix/models; None without S3."""
    cache: S3Cache
    print_line: Callable[[str], None]

    def resolve(self, path: str, source: str | Sequence[str]) -> str:
        """Return a local folder, or the name of a model on the hub.

        `source`: `auto` (local, then S3, then the hub), one of `local`, `s3`, `hub`, or several of them in order.
        Raises OperatorError if none of them has the model, AwsError if S3 cannot be read.
        """
        tried = []
        for name in _source_order(source):
            found, why = {"local": self._local, "s3": self._s3, "hub": self._hub}[name](path)
            if found:
                self.print_line(f"model {path}: {'Hugging Face Hub' if name == 'hub' else found}")
                return found
            tried.append(why)
        raise OperatorError(f"model {path!r} was not found: {'; '.join(tried)}")

    def _local(self, path: str) -> tuple[str | None, str]:
        folder = self.code / path
        if path.startswith(s3.SCHEME):
            return None, "it is not a local path"
        return (str(folder), "") if folder.is_dir() else (None, f"there is no folder {folder}")

    def _s3(self, path: str) -> tuple[str | None, str]:
        if path.startswith(s3.SCHEME):
            address = path
        elif self.models is None:
            return None, "this job has no S3 prefix for models"
        else:
            address = f"{self.models}/{PurePosixPath(path).name}"
        copy = self.cache.get(address)
        if copy is None:
            return None, f"{address}/ contains no objects"
        return (str(copy), "") if copy.is_dir() else (None, f"{address} is one object, not a folder")

    def _hub(self, path: str) -> tuple[str | None, str]:
        named = _HUB_NAME.fullmatch(path)
        return (path, "") if named else (None, f"{path!r} is not the name of a model on the Hugging Face Hub")


def _source_order(source: str | Sequence[str]) -> Sequence[str]:
    """Return where to search, in order. Raises OperatorError if the config names anything else."""
    order = SOURCES if source == "auto" else [source] if isinstance(source, str) else list(source)
    unknown = [name for name in order if name not in SOURCES]
    if unknown or not order:
        raise OperatorError(f"model.source is {source!r}; expected auto, or local, s3, hub, or a list of these")
    return order


_MD5 = re.compile(r"[0-9a-f]{32}")
_MANIFEST = "manifest.json"


class S3Object(Record):
    name: str
    """Its key below the prefix; empty for an object that is itself the address."""
    size: int
    etag: str


class InputManifest(Record):
    """What a copy contains. It is written before the copy gets its name."""

    address: str
    objects: tuple[S3Object, ...]


@dataclass(frozen=True)
class S3Cache:
    """Copies in one folder. Several processes of a host may use it."""

    folder: Path
    client: Callable[[], Any]

    def get(self, address: str) -> Path | None:
        """Return the local copy of an object or of all objects below a prefix; None if there is nothing.

        A copy is used again if S3 still lists the same objects. Raises AwsError if S3 cannot be read, RunError if a
        copy is damaged in transfer, OSError if it cannot be written.
        """
        address = address.rstrip("/")
        bucket, key = s3.split(address)
        manifest = InputManifest(address=address, objects=tuple(self._list(address, bucket, key)))
        if not manifest.objects:
            return None
        entry = self.folder / hashlib.sha256(address.encode()).hexdigest()[:16]
        content = entry / PurePosixPath(key).name
        self.folder.mkdir(parents=True, exist_ok=True)
        with _locked(entry.with_suffix(".lock")):
            if not _is_copy(entry, content, manifest):
                partial = entry.with_suffix(".partial")
                for leftover in (partial, entry):
                    shutil.rmtree(leftover, ignore_errors=True)
                self._copy(bucket, key, manifest, partial)
                partial.rename(entry)
                sync_folder(self.folder)
        return content

    def _copy(self, bucket: str, key: str, manifest: InputManifest, partial: Path) -> None:
        content = partial / PurePosixPath(key).name
        for item in manifest.objects:
            target = content / item.name if item.name else content
            target.parent.mkdir(parents=True, exist_ok=True)
            with aws_errors(f"{manifest.address} cannot be copied"):
                self.client().download_file(bucket, f"{key}/{item.name}" if item.name else key, str(target))
            self._check(target, item, manifest.address, bucket, f"{key}/{item.name}" if item.name else key)
        write_synced(partial / _MANIFEST, orjson.dumps(manifest.model_dump()))

    def _check(self, file: Path, item: S3Object, address: str, bucket: str, key: str) -> None:
        """Compare the size and, where S3 states it, the MD5 sum."""
        size = file.stat().st_size
        if size != item.size:
            raise RunError(
                f"{address}: {item.name} has {size:,} bytes, expected {item.size:,}; it changed during the copy"
            )
        if not _MD5.fullmatch(item.etag):  # an object in several parts
            return
        with file.open("rb") as opened:
            found = hashlib.file_digest(opened, "md5").hexdigest()
        if found != item.etag and not self._is_encrypted_by_key(address, bucket, key):
            raise RunError(
                f"{address}: {item.name} has the MD5 sum {found}, expected {item.etag}; it changed or was damaged"
            )

    def _is_encrypted_by_key(self, address: str, bucket: str, key: str) -> bool:
        """Return whether S3 encrypts the object with a key of KMS. Its ETag looks like an MD5 sum then, but is none."""
        with aws_errors(f"{address} cannot be read"):
            head = self.client().head_object(Bucket=bucket, Key=key)
        return str(head.get("ServerSideEncryption", "")).startswith("aws:kms")

    def _list(self, address: str, bucket: str, key: str) -> Iterator[S3Object]:
        prefix = f"{key}/"
        found = False
        with aws_errors(f"{address} cannot be read"):
            pages = self.client().get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
            for item in (item for page in pages for item in page.get("Contents", ())):
                name = item["Key"].removeprefix(prefix)
                if not name or name.endswith("/"):  # the placeholder of a folder
                    continue
                if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                    raise OperatorError(f"s3://{bucket}/{item['Key']} is not a valid file name: rename the object")
                found = True
                yield S3Object(name=name, size=item["Size"], etag=item["ETag"].strip('"'))
        if found:
            return
        try:
            with aws_errors(f"{address} cannot be read"):
                head = self.client().head_object(Bucket=bucket, Key=key)
        except AwsError as error:
            if error.status == 404:
                return
            raise
        yield S3Object(name="", size=head["ContentLength"], etag=head["ETag"].strip('"'))


def _is_copy(entry: Path, content: Path, manifest: InputManifest) -> bool:
    try:
        stored = InputManifest.model_validate_json((entry / _MANIFEST).read_bytes())
        sizes = {item.name: (content / item.name if item.name else content).stat().st_size for item in stored.objects}
    except (OSError, ValueError):
        return False
    return stored == manifest and all(sizes[item.name] == item.size for item in manifest.objects)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Wait until no other process uses the same copy. The lock ends with the process."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
