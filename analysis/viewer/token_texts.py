"""The tokens of a model call, each with its text.

Tokens of a byte-level vocabulary can end in the middle of a character, for example of an emoji. Engines report such
tokens as U+FFFD; `joined_texts` takes the character from the text that the engine returned for the whole turn. Where
only ids are recorded, a `TokenDecoder` gives them texts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from rollyard.analysis.viewer.api_records import RolloutView, Tokens
from rollyard.analysis.viewer.untrusted_values import sanitize, shortened_values
from rollyard.records.errors import OperatorError
from rollyard.records.optional import EXTRAS, install_command, missing
from rollyard.records.tokens import alternatives_of, ids_of, model_call
from rollyard.records.types import Json, mapping

REPLACEMENT = "\ufffd"
_CONTEXT = 12
"""Number of characters before and after an incomplete character by which it is found in the turn's text."""
_SHORT = 4
_LONGEST = 8
"""Maximum number of characters that are looked for in place of adjacent incomplete tokens."""
_MOST_TOKENS = 16
"""Number of tokens after which bytes that are no character are shown as they are."""
_FILE = "tokenizer.json"


def tokens_of(item: Json, written: Sequence[str] = (), trained: bool = True) -> Tokens | None:
    """Return the item's tokens; None if they are missing or invalid.

    `written`: the texts of the model call, from which characters are completed that the engine could not decode.
    """
    call = model_call(item)
    if call is None:
        return None
    trace = mapping(call.trace)
    alternatives = [[(sanitize(text), value) for text, value in alternatives_of(entry)] for entry in call.entries]
    return Tokens(
        prompt=(ids_of(item.get("prompt_token_ids")) or []) if call.ids else [],
        generated=call.ids,
        log_probs=call.log_probs,
        texts=joined_texts(call.texts, written),
        alternatives=alternatives if any(alternatives) else [],
        trained=trained,
        trace=shortened_values({key: trace[key] for key in trace if key != "texts"})
        if isinstance(call.trace, dict) and call.ids
        else None,
    )


def joined_texts(texts: list[str], written: Sequence[str]) -> list[str]:
    """Return the texts with each run of incomplete tokens as one text, which is that of its last token.

    `written` contains the texts of the turn. A character that is not found in them remains U+FFFD.
    """
    if not any(REPLACEMENT in text for text in texts):
        return [sanitize(text) for text in texts]
    result = list(texts)
    start = 0
    while start < len(texts):
        if REPLACEMENT not in texts[start]:
            start += 1
            continue
        end = start + 1
        while end < len(texts) and REPLACEMENT in texts[end]:
            end += 1
        run = "".join(texts[start:end])
        before = "".join(result[max(0, start - _CONTEXT) : start])
        after = "".join(texts[end : end + _CONTEXT]).partition(REPLACEMENT)[0]
        found = _found(before, run, after, written)
        result[start:end] = [""] * (end - start - 1) + [found or _collapsed(run)]
        start = end
    return [sanitize(text) for text in result]


def _found(before: str, run: str, after: str, written: Sequence[str]) -> str:
    """Return what the texts contain in place of `run`, between the text before and after it; empty if not found."""
    head, tail = run.partition(REPLACEMENT)[0], run.rpartition(REPLACEMENT)[2]
    before, after = before + head, tail + after
    # The texts lack the markers between them, such as `</think>`, so the context after a character may be short.
    for left in (before[-_CONTEXT:], before[-_SHORT:]):
        for right in (after[:_CONTEXT], after[:_SHORT], after[:1], ""):
            for text in written:
                if found := _between(text, left, right, _LONGEST + len(run)):
                    return head + found + tail
    return ""


def _between(text: str, left: str, right: str, longest: int) -> str:
    """Return at most `longest` characters of `text` between `left` and `right`; an empty `right` is the text's end."""
    at = text.find(left)
    while at >= 0:
        begin = at + len(left)
        end = text.find(right, begin + 1) if right else len(text)
        if begin < end <= begin + longest:
            return text[begin:end]
        at = text.find(left, at + 1)
    return ""


def _collapsed(run: str) -> str:
    """Return the run with adjacent U+FFFD as one, because they are pieces of a character."""
    head, _, rest = run.partition(REPLACEMENT)
    return head + REPLACEMENT + rest.replace(REPLACEMENT, "")


def decoded_rollout(view: RolloutView, decoder: TokenDecoder | None) -> RolloutView:
    """Return the rollout with decoded texts, where ids without texts are recorded."""
    if decoder is None:
        return view
    events = []
    for event in view.events:
        tokens = event.tokens
        if tokens is not None and tokens.generated and not tokens.texts:
            texts = [sanitize(text) for text in decoder.texts(tokens.generated)]
            event = event.model_copy(update={"tokens": tokens.model_copy(update={"texts": texts})})
        events.append(event)
    return view.model_copy(update={"events": events})


class TokenDecoder:
    """Thread-safe if `decode` is."""

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        """`decode` returns the text of consecutive tokens, special tokens included."""
        self._decode = decode

    def texts(self, ids: Sequence[int]) -> list[str]:
        """Return the text that each token adds. A character whose bytes are spread over several tokens is the text of
        the last of them, and the others have an empty text.

        A token alone may decode to another text than after its predecessors, for example without its leading space. So
        each is decoded together with those since the last complete character but one.
        """
        found: list[str] = []
        start = end = 0
        """The tokens from `start` to `end` are the context, whose text is complete."""
        for place in range(1, len(ids) + 1):
            before, now = self._decoded(ids[start:end]), self._decoded(ids[start:place])
            is_complete = not now.endswith(REPLACEMENT) or place == len(ids) or place - end >= _MOST_TOKENS
            found.append(now[len(before) :] if is_complete else "")
            if is_complete:
                start, end = end, place
        return found

    def _decoded(self, ids: Sequence[int]) -> str:
        try:
            return self._decode(list(ids)) if ids else ""
        except (OverflowError, ValueError, TypeError):  # ids that no vocabulary has, because rows are untrusted
            return REPLACEMENT * len(ids)


def load_tokenizer(name: str, print_line: Callable[[str], None]) -> TokenDecoder:
    """Load the tokenizer of a model's folder, of a `tokenizer.json`, or of a model on the Hugging Face Hub.

    Before anything is downloaded, `print_line` is told. Raises OperatorError.
    """
    if missing(EXTRAS["tokens"]):
        raise OperatorError(f"--tokenizer needs the package tokenizers; install it with {install_command('tokens')}")
    from tokenizers import Tokenizer  # optional

    path = Path(name)
    file = path / _FILE if path.is_dir() else path
    try:
        if file.is_file():
            return TokenDecoder(partial(Tokenizer.from_file(str(file)).decode, skip_special_tokens=False))
        if path.is_dir():
            raise OperatorError(
                f"the folder {name!r} has no {_FILE}. If transformers can load its tokenizer, "
                "AutoTokenizer.from_pretrained(...).save_pretrained(...) writes one"
            )
        if path.is_absolute() or name.startswith(".") or name.count("/") > 1:
            raise OperatorError(f"--tokenizer {name}: there is no such file or folder")
        print_line(f"loading {_FILE} of {name} from the Hugging Face Hub, unless it is in the cache")
        return TokenDecoder(partial(Tokenizer.from_pretrained(name).decode, skip_special_tokens=False))
    except OperatorError:
        raise
    except Exception as error:  # the package raises bare Exceptions
        raise OperatorError(
            f"--tokenizer {name} cannot be loaded: {str(error).strip().partition(chr(10))[0]}"
        ) from error
