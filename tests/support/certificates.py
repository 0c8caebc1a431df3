"""Certificates of an authority that exists only in a test."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import trustme

from rollyard.records.run_types import Keys, TlsFiles
from tests.support.fixtures import KEYS


def issue(
    folder: Path,
    *names: str,
    authority: trustme.CA | None = None,
    trusted: trustme.CA | None = None,
    expires: datetime | None = None,
) -> TlsFiles:
    """Write a certificate for `names` (default: 127.0.0.1), its key and the authority that clients trust, replacing
    those that are there.

    `trusted`: the authority that clients trust, if it is not the one that issues the certificate.
    """
    authority = authority or trustme.CA()
    issued = datetime(2000, 1, 1) if expires is not None else None
    leaf = authority.issue_cert(*(names or ("127.0.0.1",)), not_before=issued, not_after=expires)
    paths = {name: folder / f"{name}.pem" for name in ("certificate", "key", "ca")}
    contents = {
        "certificate": b"".join(blob.bytes() for blob in leaf.cert_chain_pems),
        "key": leaf.private_key_pem.bytes(),
        "ca": (trusted or authority).cert_pem.bytes(),
    }
    for name, path in paths.items():
        new = path.with_suffix(".new")
        new.write_bytes(contents[name])
        new.chmod(0o600)
        new.replace(path)
    return TlsFiles(**{name: str(path) for name, path in paths.items()})


def tls_keys(files: TlsFiles) -> Keys:
    return KEYS.model_copy(update={"tls": files})
