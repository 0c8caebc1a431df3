"""ResponseBody: the body of a streamed response."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable


class ResponseBody:
    """An iterator over a body. Closing it closes the connection, also before the first chunk was read.

    A generator alone would not: closing one before its first step runs none of its code.
    """

    def __init__(self, chunks: AsyncGenerator[bytes], close: Callable[[], None]) -> None:
        self._chunks = chunks
        self.close = close

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        return await anext(self._chunks)

    async def aclose(self) -> None:
        self.close()
        await self._chunks.aclose()
