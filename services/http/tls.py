"""TLS: the certificate that a server shows, and the certificates that a client accepts. Both follow their files.

Every host, name and date is verified; nothing turns that off. TLS 1.2 is the oldest version.
"""

from __future__ import annotations

import logging
import os
import ssl
import stat
from collections.abc import Iterable
from pathlib import Path

from rollyard.records.errors import OperatorError
from rollyard.records.run_types import TlsFiles

log = logging.getLogger(__name__)
_NOT_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE")
"""What OpenSSL reports when the peer sends plain HTTP; which of them depends on its version."""
_UNKNOWN_ISSUER = (18, 19, 20, 21)
"""Codes of X509_verify_cert: the chain ends in a certificate that this client does not know."""
UNTRUSTED = "untrusted_certificate"
"""Code of the failure to connect to a peer whose certificate is not accepted."""
_State = tuple[tuple[int, int, int], ...]


class Trust:
    """The authorities that a client accepts: the system's, or those of `SSL_CERT_FILE`, and those of more files."""

    def __init__(self, ca_files: Iterable[str] = ()) -> None:
        self._ca_files = list(ca_files)
        self._context: ssl.SSLContext | None = None
        self._state: _State = ()
        self._unusable: _State = ()

    def add(self, ca_file: str) -> None:
        if ca_file not in self._ca_files:
            self._ca_files.append(ca_file)
            self._context = None

    def context(self) -> ssl.SSLContext:
        """Return the context for a new connection, with the former authorities while a file that has changed cannot be
        used: it may be half written. Raises OSError, with a sentence, if there are none yet.
        """
        state = _state(self._ca_files)
        if self._context is None or state != self._state:
            try:
                self._context, self._state = self._load(), state
            except OSError as error:
                if self._context is None:
                    raise
                if state != self._unusable:
                    log.error("the former authorities stay: %s", error.strerror)
                self._unusable = state
        return self._context

    def _load(self) -> ssl.SSLContext:
        # Loading the system's authorities takes 20 ms, and most clients never need them.
        context = ssl.create_default_context()
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        for ca_file in self._ca_files:
            _load_ca(context, ca_file)
        return context


class ServerCertificate:
    """A certificate and its key. `renew` takes new ones from the files, for the connections that follow."""

    def __init__(self, files: TlsFiles, host: str | None = None) -> None:
        """`host`: name or address under which the run's clients reach the server. Raises OperatorError, with a `host`
        also for a certificate that they would not accept.
        """
        self._files = files
        self._host = host
        self._watched = [files.certificate, files.key, *([files.ca] if files.ca else [])]
        self._seen = self._loaded = _state(self._watched)
        self.context = self._load()

    def renew(self) -> None:
        """Load files that have changed, but not since the last call: they may be half written, or one is still to come.

        If that fails, the former certificate stays, and the reason is logged.
        """
        state = _state(self._watched)
        if state != self._seen:
            self._seen = state
        elif state != self._loaded:
            self._loaded = state
            try:
                self.context = self._load()
            except OperatorError as error:
                log.error("the certificate is not renewed, and the former one stays: %s", error)
            else:
                log.info("the certificate was renewed from %s", self._files.certificate)

    def _load(self) -> ssl.SSLContext:
        files = self._files
        _check_key(files.key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.num_tickets = 0  # connections are kept, so none is resumed
        try:
            context.load_cert_chain(files.certificate, files.key, password=_no_password)
        except ssl.SSLError as error:
            raise OperatorError(_why_unusable(files, error)) from error
        except OSError as error:
            raise OperatorError(f"the certificate {files.certificate} cannot be read: {error.strerror}") from error
        if self._host is None:
            return context
        try:
            _shake_hands(Trust([files.ca] if files.ca else []).context(), context, self._host)
        except ssl.SSLCertVerificationError as error:
            raise OperatorError(
                f"clients would not accept the certificate {files.certificate} for {self._host}: {untrusted(error)}"
            ) from error
        except OSError as error:
            raise OperatorError(error.strerror or str(error)) from error
        return context


def untrusted(error: ssl.SSLCertVerificationError) -> str:
    """Say why a certificate is not accepted, and what to do."""
    found = error.verify_message.rstrip(".")
    if error.verify_code in _UNKNOWN_ISSUER:
        return (
            f"{found}. If a private authority issued it, start the run with --tls-ca-file FILE; on other hosts and "
            "from other folders, export SSL_CERT_FILE=FILE"
        )
    if "mismatch" in found:
        return f"{found}. Issue one with this name or address in its subjectAltName, or use a name that it contains"
    return found


def connect_error(error: ssl.SSLError) -> str:
    """Say why a handshake failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {untrusted(error)}"
    if error.reason in _NOT_TLS:
        return "it does not speak TLS; use http:// instead of https://"
    return f"the TLS handshake failed ({error.reason or error})"


def _load_ca(context: ssl.SSLContext, ca_file: str) -> None:
    try:
        context.load_verify_locations(cafile=ca_file)
    except ssl.SSLError as error:
        problem = f"the file of authorities {ca_file} contains no certificate; expected PEM ({error.reason})"
        raise OSError(error.errno, problem) from error
    except OSError as error:
        raise OSError(error.errno, f"the file of authorities {ca_file} cannot be read: {error.strerror}") from error


def _check_key(path: str) -> None:
    """Raise OperatorError unless only the server's user, or root with the server's group, can read the key."""
    try:
        stats = Path(path).stat()
    except OSError as error:
        raise OperatorError(f"the key {path} cannot be read: {error.strerror}") from error
    # As PostgreSQL does it: Kubernetes mounts secrets as root's, and readable by the pod's group.
    allowed = 0o640 if stats.st_uid == 0 and os.geteuid() != 0 else 0o600
    mode = stat.S_IMODE(stats.st_mode)
    if mode & ~allowed & 0o077:
        raise OperatorError(
            f"the key {path} has mode {mode:04o}, so others can use it; expected 0600: chmod 600 {path}"
        )


def _why_unusable(files: TlsFiles, error: ssl.SSLError) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"the key {files.key} is not that of the certificate {files.certificate}"
    return (
        f"the certificate {files.certificate} or the key {files.key} cannot be used; expected PEM, without a password "
        f"({error.reason or error})"
    )


def _no_password() -> str:
    """Refuse to ask at the terminal, as OpenSSL would."""
    return ""


def _shake_hands(client_context: ssl.SSLContext, server_context: ssl.SSLContext, host: str) -> None:
    """Open a connection in memory. Raises ssl.SSLError if the client does not accept the server."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server, server_hostname=host)
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue


def _state(paths: Iterable[str]) -> _State:
    """Return what changes when a file is replaced or written, or its mode changes; zeros for one that is missing."""
    state = []
    for path in paths:
        try:
            found = Path(path).stat()
        except OSError:
            state.append((0, 0, 0))
        else:
            state.append((found.st_ctime_ns, found.st_ino, found.st_size))
    return tuple(state)
