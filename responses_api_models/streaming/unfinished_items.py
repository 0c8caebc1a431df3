"""Unfinished items in a Responses stream, which create the events for their start, deltas and end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rollyard.records.types import Json
from rollyard.responses_api_models.convert.completions import call_item
from rollyard.services.responses import stream_events
from rollyard.services.responses.stream_events import TEXT_FIELD, Event


class StreamedText:
    """An unfinished message or reasoning item, which consists of parts."""

    def __init__(self, item: Json, index: int) -> None:
        self.item = item
        self.index = index
        self._group = "content" if "content" in item else "summary"
        self._texts: list[str] = []
        self._logprobs: list[Json] = []

    @property
    def kind(self) -> str:
        """The item's type: `message` or `reasoning`."""
        return str(self.item["type"])

    def start(self) -> Event:
        return stream_events.item_added(self.item, self.index)

    def add(self, kind: str, text: str, logprobs: Iterable[Json] = ()) -> Iterator[Event]:
        """Add text to the open part, or to a new part if the open one has a different type."""
        if not self._parts or self._parts[-1]["type"] != kind:
            yield from self.end()
            self._parts.append({"type": kind, TEXT_FIELD[kind]: "", **_empty_fields(kind)})
            yield stream_events.part_added(self._where, self._parts[-1])
        if text:
            given = list(logprobs)
            self._texts.append(text)
            self._logprobs.extend(given)
            yield stream_events.part_delta(self._where, self._parts[-1], text, given)

    def annotate(self, annotations: list[Json]) -> list[Json]:
        """Add annotations to the open text. Return the annotations that could not be added because there is no text
        yet.
        """
        if not self._parts or "annotations" not in self._parts[-1]:
            return annotations
        self._parts[-1]["annotations"].extend(annotations)
        return []

    def add_logprobs(self, logprobs: list[Json]) -> Iterator[Event]:
        """Send the logprobs of final tokens that have no text in an empty delta, so that the deltas contain all
        logprobs.
        """
        if logprobs and self._parts:
            self._logprobs.extend(logprobs)
            yield stream_events.part_delta(self._where, self._parts[-1], "", logprobs)

    def end(self) -> Iterator[Event]:
        """Finish the open part."""
        if self._parts:
            part = self._parts[-1]
            part[TEXT_FIELD[part["type"]]] = "".join(self._texts)
            if "logprobs" in part:
                part["logprobs"] = self._logprobs
            self._texts, self._logprobs = [], []
            yield from stream_events.part_done(self._where, part)

    @property
    def _parts(self) -> list[Json]:
        parts: list[Json] = self.item[self._group]
        return parts

    @property
    def _where(self) -> Json:
        position = {"output_index": self.index, "item_id": self.item["id"]}
        return {**position, f"{self._group}_index": len(self._parts) - 1}


class StreamedToolCall:
    """An unfinished tool call; the deltas of several calls can be interleaved."""

    kind = "function_call"

    def __init__(self, call: Json, index: int, item_id: str, taken: set[str]) -> None:
        function = call.get("function")
        blank = {**(function if isinstance(function, dict) else {}), "arguments": ""}
        self.item = call_item({**call, "function": blank}, item_id, taken)
        self.index = index
        self._number = call.get("index")
        self._id = call.get("id")
        self._arguments: list[str] = []

    def start(self) -> Event:
        return stream_events.item_added(self.item, self.index)

    def continues_with(self, call: Json) -> bool:
        """Return True if `call` continues this tool call. Some engines give every call index 0, but different ids."""
        other = call.get("id") and call["id"] != self._id
        return call.get("index") == self._number and not other

    def add(self, name: str, arguments: str) -> Iterator[Event]:
        """Append to the arguments. Some engines send the name late, so set it if it is still missing."""
        self.item["name"] = self.item["name"] or name
        if arguments:
            self._arguments.append(arguments)
            yield stream_events.arguments_delta(self._where, arguments)

    def end(self) -> Iterator[Event]:
        """Complete the arguments and yield the event for it."""
        self.item["arguments"] = "".join(self._arguments)
        yield stream_events.arguments_done(self._where, self.item)

    @property
    def _where(self) -> Json:
        return {"output_index": self.index, "item_id": self.item["id"]}


def _empty_fields(kind: str) -> Json:
    return {"annotations": [], "logprobs": []} if kind == "output_text" else {}
