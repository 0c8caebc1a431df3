"""Fingerprints the code that determines a server's behaviour: its folder, its imports, and its declared packages.

Included are the Python files and compiled modules in the folder and in the plug-in packages and local modules that it
imports; other files in those folders if their names occur in the code or the settings (levels, prompts, templates);
and any other files that the settings refer to. Excluded are Rollyard's `services/`, installed packages (except for the
versions of declared ones), scripts that the code does not use, and other files whose names do not occur in the code.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from rollyard.records.io.search_path import INSTALLED
from rollyard.records.run_types import CodeSources, ServerCode
from rollyard.records.types import Json
from rollyard.services.config.nemo_gym.folders import installed_version
from rollyard.services.config.plugins import PLUGINS
from rollyard.services.config.server_code.code_files import CODE, files_of
from rollyard.services.config.server_code.file_digest import DIGITS, file_digest
from rollyard.services.config.server_code.file_name_literals import FileNames
from rollyard.services.config.server_code.requirements import declared_packages
from rollyard.services.config.server_code.source_scan import Source, read_source
from rollyard.services.server.app import Server
from rollyard.services.server.settings import is_secret

_OWN = "rollyard"
_SYSTEM = tuple(map(Path, ("/bin", "/dev", "/etc", "/lib", "/proc", "/run", "/sys", "/usr")))


class LoadedCode(NamedTuple):
    """The code that a server has loaded, and where its files are."""

    code: ServerCode
    sources: CodeSources


def loaded_code(folder: Path, kind: type[Server], families: Iterable[str], settings: Json) -> LoadedCode:
    """Return the code that a server in `folder` has loaded. Call this in the server's process, right after loading.

    `families`: top-level packages that contain plug-ins.
    """
    folder = folder.resolve()
    closure = _CodeClosure(folder, str(settings.get("entrypoint", "app.py")), frozenset(families))
    excluded = {*kind.Settings.NOT_IDENTITY, "entrypoint"}
    identity = {key: value for key, value in settings.items() if key not in excluded and not is_secret(key)}
    setting_values = set(_strings(identity))
    paths = {closure.display_name(path): path for path in {*closure.files, *closure.named(setting_values)}}
    paths |= {name: path for name in setting_values if (path := _named_file(name)) is not None}
    absolute = (text for source in closure.sources.values() for text in source.texts if text.startswith("/"))
    paths |= {name: path for name in absolute if (path := _named_file(name)) and not _is_system(path)}
    packages = declared_packages(folder, {extra for source in closure.sources.values() for extra in source.extras})
    code = _server_code(paths, packages, closure.display_name(folder))
    folders = {closure.display_name(folder): str(folder) for folder in closure.folders}
    return LoadedCode(code, CodeSources(paths={name: str(path) for name, path in paths.items()}, folders=folders))


def foreign_code(folder: Path, entrypoint: str, root: Path) -> ServerCode:
    """Return the code of a NeMo Gym server: its folder's code, the files that it names, and NeMo Gym's version.

    `root`: the folder that contains NeMo Gym's folders.
    """
    folder = folder.resolve()
    closure = _CodeClosure(folder, entrypoint, frozenset())
    paths = {str(path.relative_to(root.resolve())): path for path in {*closure.files, *closure.named(())}}
    version = installed_version(root)
    own = str(folder.relative_to(root.resolve()))
    return _server_code(paths, {"nemo-gym": version} if version else {}, own)


def _server_code(paths: Mapping[str, Path], packages: dict[str, str], folder: str) -> ServerCode:
    files = {name: file_digest(path) for name, path in paths.items()}
    digest = hashlib.sha256(repr((sorted(files.items()), sorted(packages.items()))).encode())
    ordered = dict(sorted(files.items()))
    return ServerCode(digest=digest.hexdigest()[:DIGITS], files=ordered, packages=packages, folder=folder)


class _CodeClosure:
    """Finds the code files of a server's folder and everything that they import, directly or indirectly."""

    def __init__(self, folder: Path, entrypoint: str, families: frozenset[str]) -> None:
        self._families = families
        self.folders = [folder]
        """The server's folder, then the packages that it imports."""
        self._modules: set[tuple[str, str]] = set()
        self.files: set[Path] = set()
        self.sources: dict[Path, Source] = {}
        """The Python files, except for scripts that no other file imports or starts, such as `prepare.py`."""
        scripts: dict[Path, Source] = {}
        waiting = [path for path in files_of(folder) if path.suffix in CODE]
        while waiting:
            path = waiting.pop()
            if path in self.files:
                continue
            self.files.add(path)
            source = self._read(path)
            if source.is_script and path.name != entrypoint:
                scripts[path] = source
            else:
                waiting += self._add_source(path, source)
            if not waiting:
                used = {
                    name.rpartition(".")[2]
                    for source in self.sources.values()
                    for name in (*source.imports, *source.texts)
                }
                for script in [script for script in scripts if script.stem in used]:
                    waiting += self._add_source(script, scripts.pop(script))
        self.files -= scripts.keys()

    def named(self, setting_values: Iterable[str]) -> Iterator[Path]:
        """Yield the files whose names occur in their folder's code or in the settings: data files and scripts."""
        for folder in self.folders:
            texts = (text for path, source in self.sources.items() if folder in path.parents for text in source.texts)
            names = FileNames({*setting_values, *texts})
            yield from (path for path in files_of(folder) if names.match(path.relative_to(folder)))

    def display_name(self, path: Path) -> str:
        """Return a file's name for the manifest. It does not depend on where Rollyard is installed."""
        for parent in path.parents:
            if parent.name in self._families or parent.name == "responses_api_agents":
                return str(path.relative_to(parent.parent))
        base = next((folder for folder in self.folders if folder in path.parents), path)
        return str(path.relative_to(base.parent))

    def _read(self, path: Path) -> Source:
        if path.suffix != ".py":
            return Source()
        return read_source(path, ".".join((PLUGINS, *Path(self.display_name(path)).parts[:-1])))

    def _add_source(self, path: Path, source: Source) -> Iterator[Path]:
        self.sources[path] = source
        for name in source.imports:
            for found in self._module(name):
                if found.is_dir():
                    self.folders.append(found)
                    yield from (file for file in files_of(found) if file.suffix in CODE)
                else:
                    yield found

    def _module(self, name: str) -> list[Path]:
        """Return the file or folder of an imported module; empty if it is installed or was returned before."""
        top, *rest = name.split(".")
        if top in (_OWN, PLUGINS):
            family, name = (*rest, "", "")[:2]
            if family not in self._families or (family, name) in self._modules:
                return []
            self._modules.add((family, name))
            return self._of_family(family, name)
        if (top, "") in self._modules or top in ("", *sys.stdlib_module_names):
            return []
        self._modules.add((top, ""))
        return [path for path in _locate(top) if not self._is_installed(path)]

    def _of_family(self, family: str, name: str) -> list[Path]:
        """Return the folder or file of one of Rollyard's plug-ins, or the folder of a loaded user plug-in."""
        if not name:
            return []
        own = INSTALLED / family / name
        loaded = getattr(sys.modules.get(f"{PLUGINS}.{family}.{name}"), "__path__", ())
        for folder in (*(Path(path).resolve() for path in loaded), own):
            if folder.is_dir():
                return [] if folder in self.folders else [folder]
        return [file] if (file := own.with_suffix(".py")).is_file() else []

    @cached_property
    def _installed(self) -> tuple[Path, ...]:
        paths = sysconfig.get_paths()
        return tuple({Path(paths[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib")})

    def _is_installed(self, path: Path) -> bool:
        return any(folder in path.parents for folder in self._installed) or "site-packages" in path.parts


def _locate(top: str) -> list[Path]:
    """Return the folders of a top-level package or the file of a top-level module, loaded or not."""
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return []
    if spec is None:
        return []
    if spec.submodule_search_locations is not None:
        return [Path(path).resolve() for path in spec.submodule_search_locations]
    return [Path(spec.origin).resolve()] if spec.has_location and spec.origin else []


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
    """Return the file to which a setting or a path in the code refers; None if there is no such file."""
    if not 0 < len(text) < 1024 or "\n" in text or "://" in text:
        return None
    try:
        path = Path(text).expanduser().resolve()
        return path if path.is_file() else None
    except (OSError, RuntimeError, ValueError):
        return None


def _is_system(path: Path) -> bool:
    """Return True for a file of the operating system, which is not part of the code and may change at any time."""
    return any(folder in path.parents for folder in _SYSTEM)
