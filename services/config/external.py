"""Servers that run elsewhere: an entry with `url`, or with `host` and `port`, and without a folder."""

from __future__ import annotations

import re
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

from rollyard.records.errors import OperatorError
from rollyard.records.types import Json
from rollyard.services.config.run_config import ServerSpec
from rollyard.services.server.settings import ServerSettings, parse_settings

_NO_FOLDER = Path()
_ALL_ADDRESSES = ("0.0.0.0", "::")
_HOST = re.compile(r"[\w.:%-]+")


class ExternalSettings(ServerSettings):
    """Settings of a server that runs elsewhere."""

    NOT_IDENTITY: ClassVar[frozenset[str]] = ServerSettings.NOT_IDENTITY | {"url"}

    url: str | None = None
    """Base URL of the server, such as http://10.0.0.5:8080; instead of host and port."""
    resources_server: Json | None = None
    """The environment of an agent, as in its own config. It has no effect here: the agent itself knows it."""
    model_server: Json | None = None
    """The same for its model server."""


def is_external(raw: Json, *, has_own_folder: bool) -> bool:
    """Return whether an entry names a server that runs elsewhere.

    That is the case if it has `url`, or `host` and `port`, but no entrypoint. With an entrypoint, or a host that stands
    for all addresses, they are the address on which Rollyard's server listens.
    """
    if raw.get("entrypoint") is not None:
        return False
    if not has_own_folder:
        return "url" in raw or "port" in raw
    return "url" in raw or ("port" in raw and "host" in raw and raw["host"] not in _ALL_ADDRESSES)


def external_server(name: str, family: str, implementation: str, raw: Json) -> ServerSpec:
    """Return the server that the entry names. Raises OperatorError if the entry contradicts itself."""
    found = " and ".join(key for key in ("url", "host", "port") if raw.get(key) is not None)
    settings = parse_settings(ExternalSettings, {key: raw[key] for key in raw if raw[key] is not None}, name)
    if settings.url is not None:
        if settings.model_fields_set & {"host", "port"}:
            raise OperatorError(f"{name} has {found}; an external server has either url, or host and port")
        url = _checked_url(name, settings.url)
    elif settings.model_fields_set >= {"host", "port"} and settings.port:
        name_or_address = settings.host.removeprefix("[").removesuffix("]")
        if not _HOST.fullmatch(name_or_address):
            raise OperatorError(f"{name}.host is {settings.host!r}; expected a host name or an address")
        host = f"[{name_or_address}]" if ":" in name_or_address else name_or_address
        url = _checked_url(name, f"http://{host}:{settings.port}")
    else:
        raise OperatorError(
            f"{name} has {found or 'no address'}, and no folder {family}/{implementation}: an external server needs "
            "url, or both host and port"
        )
    if settings.replicas != 1:
        raise OperatorError(f"{name}: replicas is {settings.replicas}, but an external server has one address")
    return ServerSpec(name, family, implementation, _NO_FOLDER, settings, raw, False, external_url=url)


def _checked_url(name: str, url: str) -> str:
    """Return the URL without a trailing slash. Raises OperatorError if it is not the base URL of a server."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        valid = valid and url.isprintable() and " " not in url
    except ValueError:
        valid = False
    if not valid:
        raise OperatorError(f"{name}.url is {url!r}; expected a URL such as http://127.0.0.1:8080")
    if parts.username is not None or parts.password is not None:
        raise OperatorError(f"{name}.url contains credentials, which would be visible in logs; drop them")
    if "?" in url or "#" in url:
        raise OperatorError(f"{name}.url is {url!r}; expected a base URL, without ? and #")
    return url.rstrip("/")
