"""The code that decides what a server does: its folder, plug-in code that it imports, packages that it declares.

Counted: every Python file and library of the folder and of the plug-in packages and own modules that it imports, and
other files whose name stands in its code or settings (levels, prompts, templates). Not counted: the stack's own
`services/`, installed packages (but for the versions of declared ones), scripts' results, logs, rows, dot files.
"""

from __future__ import annotations

import fnmatch
import hashlib
import importlib.util
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from services.server import Server
from services.settings import is_secret
from services.types import Json, ServerCode

_CODE = frozenset({".py", ".pyi", ".pyx", ".so"})
_REQUIREMENTS = ("requirements.txt", "requirements-isolated.txt", "pyproject.toml")
_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n]+)|import[ \t]+([^\n]+))", re.MULTILINE
)
_TEXT = re.compile(r"""["']([^"'\n\\]{1,200})["']""")
_SCRIPT = re.compile(r"^if __name__ == ", re.MULTILINE)
_EXTRA = re.compile(r"""\brequire\(\s*["'][\w.]+["'],\s*["']([\w-]+)["']""")
_NAME = re.compile(r"^\s*[\"']?([A-Za-z0-9][A-Za-z0-9._-]*)")
_OWN = "services"
_LARGE = 64 << 20
_SHORT = 12


def code_of(folder: Path, kind: type[Server], families: Iterable[str], settings: Json) -> ServerCode:
    """What a server in `folder` has loaded; called in its process as soon as it has.

    `families`: top-level packages of plug-ins.
    """
    folder = folder.resolve()
    entrypoint = str(settings.get("entrypoint", "app.py"))
    left_out = {*kind.Settings.NOT_IDENTITY, "entrypoint"}
    own = list(_files(folder))
    reached = _Reached(folder, entrypoint, frozenset(families), own)
    deciding = {key: value for key, value in settings.items() if key not in left_out and not is_secret(key)}
    settled = set(_strings(deciding))
    names = settled.union(*(_TEXT.findall(text) for path, text in reached.texts.items() if folder in path.parents))
    named = [path for path in own if path.suffix not in _CODE and _is_named(path.relative_to(folder), names)]
    elsewhere = {name for name in names if name.startswith("/")}
    given = {name: path for name in settled | elsewhere if (path := _named_file(name)) is not None}
    files = {reached.shown(path): _digest(path) for path in {*reached.files, *named}}
    files |= {name: _digest(path) for name, path in given.items()}
    packages = dict(sorted(_packages(folder, reached.texts.values())))
    whole = hashlib.sha256(repr((sorted(files.items()), sorted(packages.items()))).encode())
    return ServerCode(digest=whole.hexdigest()[:_SHORT], files=dict(sorted(files.items())), packages=packages)


class _Reached:
    """Code files of a server's folder, what they import, what that imports, and so on."""

    def __init__(self, folder: Path, entrypoint: str, families: frozenset[str], own: Iterable[Path]) -> None:
        self._folder = folder
        self._families = families
        paths = sysconfig.get_paths()
        self._installed = tuple({Path(paths[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
        self._modules: set[str] = set()
        self._own_packages: list[Path] = []
        self.files: set[Path] = set()
        self.texts: dict[Path, str] = {}
        """Of those that take part when the server runs: scripts (`prepare.py`) are counted, but do not."""
        waiting = [path for path in own if path.suffix in _CODE]
        while waiting:
            path = waiting.pop()
            if path in self.files:
                continue
            self.files.add(path)
            text = path.read_text("utf-8", "replace") if path.suffix == ".py" else ""
            if path.name == entrypoint or not _SCRIPT.search(text):
                self.texts[path] = text
                waiting += [file for name in _imports(text) for file in self._module(name)]

    def shown(self, path: Path) -> str:
        """A file's name in a manifest: the same wherever the stack is installed."""
        for parent in path.parents:
            if parent.name in self._families or parent.name == "responses_api_agents":
                return str(path.relative_to(parent.parent))
        base = next(place for place in (self._folder, *self._own_packages, path) if place in (path, *path.parents))
        return str(path.relative_to(base.parent))

    def _module(self, name: str) -> list[Path]:
        """The files of an imported module; of a package of a plug-in family all of its code."""
        top, _, rest = name.partition(".")
        if top in self._families:
            rest = rest.partition(".")[0]
            name = f"{top}.{rest}"
        if name in self._modules or top in ("", _OWN) or top in sys.stdlib_module_names:
            return []
        self._modules.add(name)
        if top in self._families:
            return self._of_family(top, rest)
        own = [place for place in _places(top) if not self._is_installed(place)]
        self._own_packages += own
        found = [path for place in own for path in (_files(place) if place.is_dir() else (place,))]
        return [path for path in found if path.suffix in _CODE]

    def _of_family(self, family: str, rest: str) -> list[Path]:
        for place in getattr(sys.modules.get(family), "__path__", ()):
            found = Path(place).resolve() / rest
            if rest and found.is_dir():
                return [path for path in _files(found) if path.suffix in _CODE]
            if rest and (file := found.with_suffix(".py")).is_file():
                return [file]
        return []

    def _is_installed(self, path: Path) -> bool:
        return any(place in path.parents for place in self._installed) or "site-packages" in path.parts


def _places(top: str) -> list[Path]:
    """The folders of a top-level package or the file of a top-level module, loaded or not."""
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return []
    if spec is None:
        return []
    if spec.submodule_search_locations is not None:
        return [Path(place).resolve() for place in spec.submodule_search_locations]
    return [Path(spec.origin).resolve()] if spec.has_location and spec.origin else []


def _files(folder: Path) -> Iterator[Path]:
    """Files that may belong to the code: none below dot folders, caches, results of collections."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.name == "__pycache__":
            continue
        if path.is_dir():
            yield from _files(path)
        elif path.is_file() and path.suffix not in (".pyc", ".log") and not _is_result(path):
            yield path


def _is_result(path: Path) -> bool:
    """One of the files of a collection: its manifest is beside it."""
    stems = [path.stem, *(path.stem.removesuffix(end) for end in ("_failures", "_manifest", "_status"))]
    return path.suffix in (".jsonl", ".json") and any(
        path.with_name(f"{stem}_manifest.json").exists() for stem in stems
    )


def _imports(text: str) -> Iterator[str]:
    for module, names, plain in _IMPORT.findall(text):
        if module:
            yield module
            yield from (f"{module}.{name}" for name in re.findall(r"\w+", names))
        else:
            yield from (part.split()[0] for part in plain.split(",") if part.split())


def _is_named(path: Path, names: set[str]) -> bool:
    """Whether a text in the code means the file: its name, its path's end, a folder that holds it, or a pattern."""
    if path.suffix == ".jsonl" and "data" in path.parts[:-1] and path.name not in names:
        return False  # rows are the input's, whose digest is the collection's
    shown = path.as_posix()
    folders = {*path.parts[:-1]} - {"data", "configs"}
    return any(
        name == path.name or shown.endswith(f"/{name}") or name == shown or name in folders or _fits(shown, name)
        for name in names
    )


def _fits(path: str, pattern: str) -> bool:
    """Whether a file's name fits `*.json`, or the `{name}.json` of a formatted text."""
    name = re.sub(r"\{[^}]*\}", "*", pattern).rpartition("/")[2]
    return "*" in name and name.strip("*.") != "" and "." in name and fnmatch.fnmatch(path.rpartition("/")[2], name)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def _named_file(text: str) -> Path | None:
    """The file that a setting or an absolute path in the code names, where it is one."""
    if not 0 < len(text) < 1024 or "\n" in text or "://" in text:
        return None
    try:
        path = Path(text).expanduser().resolve()
        return path if path.is_file() else None
    except (OSError, RuntimeError, ValueError):
        return None


def _packages(folder: Path, texts: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Declared packages that are installed: the folder's requirements, and the extras that its code asks for."""
    names: set[str] = set()
    for file in _REQUIREMENTS:
        if (folder / file).is_file():
            names.update(_required((folder / file).read_text("utf-8", "replace"), file))
    extras = {extra for text in texts for extra in _EXTRA.findall(text)}
    if extras:
        for line in _stack_requirements():
            if any(f'extra == "{extra}"' in line.replace("'", '"') for extra in extras):
                names.update(_NAME.findall(line))
    for name in names:
        try:
            yield re.sub(r"[-_.]+", "-", name).lower(), metadata.version(name)
        except metadata.PackageNotFoundError:
            continue


def _required(text: str, file: str) -> Iterator[str]:
    if file.endswith(".toml"):
        found = re.search(r"^dependencies\s*=\s*\[(.*?)\]", text, re.MULTILINE | re.DOTALL)
        lines = re.findall(r"""["']([^"']+)["']""", found[1]) if found else []
    else:
        lines = [line for line in text.splitlines() if not line.lstrip().startswith(("#", "-"))]
    for line in lines:
        yield from _NAME.findall(line)


def _stack_requirements() -> list[str]:
    try:
        return metadata.requires("rollyard") or []
    except metadata.PackageNotFoundError:
        return []


def _digest(path: Path) -> str:
    """Of a file's content; of a very large one, of its size and both ends."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            found = hashlib.sha256(file.read(_LARGE))
            if size > _LARGE:
                file.seek(max(_LARGE, size - _LARGE))
                found.update(file.read(_LARGE) + str(size).encode())
    except OSError as error:
        return f"unreadable ({error.strerror})"
    return found.hexdigest()[:_SHORT]
