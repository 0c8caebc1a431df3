"""Session: one open episode on one instance of a server."""

from __future__ import annotations

import email.utils
import re
import time
from collections.abc import Mapping

from rollyard.records.errors import Failure, FailureKind
from rollyard.services.http.client import RUN_HEADER, TO_HEADER, IsComplete, ServerClient
from rollyard.services.http.problem import raise_for_status
from rollyard.services.http.transport import HttpResponse


def is_foreign(response: HttpResponse) -> bool:
    """Return True for a response of a server of another framework, which does not send the run's header."""
    return RUN_HEADER not in response.headers


class Session:
    """One episode on one instance of an environment, or of any other server that identifies its state by a cookie."""

    def __init__(
        self, client: ServerClient, server: str, cookie: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        self.server = server
        self._client = client
        self._url: str | None = None
        self._sent_to: str | None = None
        self._refused = False
        self._instance: str | None = None
        """The instance that opened the session, if the server is not Rollyard's own."""
        self.foreign = False
        """True once the server has responded as a server of another framework."""
        self._headers = {TO_HEADER: server, **(headers or {}), **({"cookie": cookie} if cookie else {})}

    async def send(
        self,
        path: str,
        body: bytes,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
        is_complete: IsComplete | None = None,
    ) -> HttpResponse:
        """POST within the session; the response may have any status. The first call selects the instance."""
        all_headers = {**self._headers, **headers} if headers else self._headers
        if (url := self._url or self._sent_to) is None:
            try:
                url, response = await self._client.reach(
                    self.server, path, body, timeout_s, all_headers, self._record_url, is_complete
                )
            except Failure as failure:
                if failure.kind in (FailureKind.UNREACHABLE, FailureKind.WRONG_RUN):
                    self._sent_to = None
                raise
            self._refused = response.status >= 400
            self._instance = self._client.book.foreign_instance(url)
        else:
            self._check_instance(url)
            response = await self._client.reach_again(self.server, url, path, body, timeout_s, all_headers, is_complete)
        self._url = url
        self.foreign = is_foreign(response)
        if response.cookies:
            self._remember(response.cookies)
        return response

    async def post(self, path: str, body: bytes, timeout_s: float, headers: Mapping[str, str] | None = None) -> bytes:
        """Like `send`, but returns the body, and raises the reported Failure unless the status is 2xx."""
        return raise_for_status(await self.send(path, body, timeout_s, headers), self.server).body

    async def delete(self, path: str, timeout_s: float, headers: Mapping[str, str]) -> None:
        """DELETE a path of the instance that opened the session, whatever it responds."""
        if self._url is not None:
            await self._client.delete(self._url, path, timeout_s, {**self._headers, **headers})

    @property
    def cookies(self) -> tuple[str, ...]:
        return tuple(filter(None, self._headers.get("cookie", "").split("; ")))

    @property
    def opened(self) -> bool:
        return self._url is not None

    @property
    def may_be_open(self) -> bool:
        """True if an instance, which gets all later calls, may have opened the session: its response may be lost."""
        return self._sent_to is not None and not self._refused

    def _check_instance(self, url: str) -> None:
        """Raise Failure session_lost if a server that is not Rollyard's own restarted: it would not notice itself."""
        instance = self._client.book.foreign_instance(url)
        if self._instance is not None and instance != self._instance:
            detail = f"the server restarted after the session was opened ({self._instance}, now {instance})"
            raise Failure(FailureKind.SESSION_LOST, detail, server=self.server)

    def _record_url(self, url: str) -> None:
        self._sent_to = url

    def _remember(self, cookies: tuple[str, ...]) -> None:
        jar = dict(pair.partition("=")[::2] for pair in self._headers.get("cookie", "").split("; ") if pair)
        for cookie in cookies:
            pair, _, attributes = cookie.partition(";")
            name, _, value = pair.strip().partition("=")
            if _is_expired(attributes):
                jar.pop(name, None)
            elif name:
                jar[name] = value
        self._headers.pop("cookie", None)
        if jar:
            self._headers["cookie"] = "; ".join(f"{name}={value}" for name, value in jar.items())


def _is_expired(attributes: str) -> bool:
    """Return whether the attributes of a Set-Cookie value delete the cookie. Max-Age has precedence over Expires."""
    given = {
        name.strip().lower(): value.strip() for name, _, value in (one.partition("=") for one in attributes.split(";"))
    }
    if re.fullmatch(r"-?[0-9]+", age := given.get("max-age", "")):
        return age.startswith("-") or not age.strip("0")  # a number may be too long for int()
    try:
        return email.utils.parsedate_to_datetime(given["expires"]).timestamp() <= time.time()
    except (KeyError, ValueError, TypeError, OverflowError):
        return False
