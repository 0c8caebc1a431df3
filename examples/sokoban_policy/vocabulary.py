"""Tokenizer of the policy: all bytes, and one token for each phrase that every conversation repeats.

A symbol of a board is one token. A call of `step` with one move is one token, too, so a turn of the policy has two
tokens, the call and the end of the turn. The answer of the environment has 21: the start of the message with the upper
wall, 16 cells, the walls at the ends of three rows, and the lower wall with the end of the message. Any other text is
tokenized by bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rollyard.resources_servers.grl_sokoban.generate_test_examples import PromptBuilder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

END, PAD = "<|im_end|>", "<|endoftext|>"
SPECIAL = (PAD, "<|im_start|>", END)
MARKS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
"""Ordinary text to which parsers of vLLM assign a meaning."""
TEMPLATE = Path(__file__).with_name("chat_template.jinja")
MOVES = ("Up", "Down", "Left", "Right")
WALLS = "######\n#"
ROW_END = "#\n#"
BOARD_START = f"\n<|im_start|>user\n<tool_response>\n{WALLS}"
BOARD_END = f"#\n######\n</tool_response>{END}\n<|im_start|>assistant\n"


def call(*moves: str) -> str:
    """Return the text of a call of `step`, as the chat template writes it."""
    actions = ", ".join(f'"{move}"' for move in moves)
    return f'<tool_call>\n{{"name": "step", "arguments": {{"actions": [{actions}]}}}}\n</tool_call>'


def prompts() -> tuple[str, str]:
    """Return the instructions and the question of the environment's rows."""
    system, user = PromptBuilder().create_params()["input"]
    return system["content"], user["content"]


def phrases() -> list[str]:
    """Return the texts that are one token each, except special tokens."""
    return [
        *MARKS,
        "√",
        ROW_END,
        BOARD_START,
        BOARD_END,
        "<|im_start|>system\n",
        "\n<|im_start|>user\n",
        "\n<|im_start|>assistant\n",
        *prompts(),
        call(),
        *(call(move) for move in MOVES),
    ]


def build_tokenizer() -> PreTrainedTokenizerFast:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytewise = Tokenizer(models.BPE(vocab={symbol: index for index, symbol in enumerate(alphabet)}, merges=[]))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bytewise.decoder = decoders.ByteLevel()
    bytewise.add_special_tokens(list(SPECIAL))
    bytewise.add_tokens([AddedToken(phrase, normalized=False) for phrase in phrases()])
    return PreTrainedTokenizerFast(
        tokenizer_object=bytewise,
        eos_token=END,
        pad_token=PAD,
        chat_template=TEMPLATE.read_text(),
        clean_up_tokenization_spaces=False,
    )
