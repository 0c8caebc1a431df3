"""Loads the tokenizer of a model for the viewer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rollyard.analysis.viewer.tokens.decoder import TokenDecoder
from rollyard.records.errors import OperatorError
from rollyard.records.io.optional import EXTRAS, install_command, missing

_FILE = "tokenizer.json"


class _HuggingFaceTokenizer:
    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))


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
            return TokenDecoder(_HuggingFaceTokenizer(Tokenizer.from_file(str(file))))
        if path.is_dir():
            raise OperatorError(
                f"the folder {name!r} has no {_FILE}. If transformers can load its tokenizer, "
                "AutoTokenizer.from_pretrained(...).save_pretrained(...) writes one"
            )
        if path.is_absolute() or name.startswith(".") or name.count("/") > 1:
            raise OperatorError(f"--tokenizer {name}: there is no such file or folder")
        print_line(f"loading {_FILE} of {name} from the Hugging Face Hub, unless it is in the cache")
        return TokenDecoder(_HuggingFaceTokenizer(Tokenizer.from_pretrained(name)))
    except OperatorError:
        raise
    except Exception as error:  # the package raises bare Exceptions
        raise OperatorError(
            f"--tokenizer {name} cannot be loaded: {str(error).strip().partition(chr(10))[0]}"
        ) from error
