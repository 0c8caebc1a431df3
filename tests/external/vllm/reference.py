"""What the engine's logprobs must be: the same weights in transformers, one forward pass in float32."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import torch
import xgrammar
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from rollyard.services.types import Json
from tests.external.vllm.tiny_model import VOCABULARY


class Reference:
    """A tiny model as transformers computes it."""

    def __init__(self, folder: Path) -> None:
        torch.set_num_threads(1)  # more are slower on shared cores
        self._model = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self._tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        known = xgrammar.TokenizerInfo.from_huggingface(
            self._tokenizer,
            vocab_size=VOCABULARY,
            stop_token_ids=self._model.generation_config.eos_token_id,
        )
        self._compiler = xgrammar.GrammarCompiler(known, max_threads=1)  # it keeps what it has compiled

    def logits(self, ids: list[int]) -> torch.Tensor:
        """Row i: of the token after the first i + 1; (tokens, vocabulary)."""
        with torch.no_grad():
            whole: torch.Tensor = self._model(torch.tensor([ids])).logits[0]
            return whole

    def logprobs(
        self, prompt: list[int], output: list[int], regex: str | None = None, temperature: float = 1.0
    ) -> list[float]:
        """Of each output token, after the regex has ruled tokens out and the rest was divided by the temperature."""
        return self.chosen(self.logits(prompt + output), len(prompt), output, regex, temperature)

    def chosen(
        self, whole: torch.Tensor, start: int, output: list[int], regex: str | None = None, temperature: float = 1.0
    ) -> list[float]:
        """The same from `logits` of a longer sequence, in which the output begins at `start`."""
        logits = whole[start - 1 : start - 1 + len(output)].clone()
        if regex is not None:
            self.rule_out(logits, output, {"regex": regex})
        return self.of_chosen(logits / temperature, output)

    def of_chosen(self, logits: torch.Tensor, output: list[int]) -> list[float]:
        """The log-probability of each output token, by rows of logits."""
        chosen = logits.log_softmax(-1).gather(1, torch.tensor(output)[:, None])
        return [float(value) for value in chosen[:, 0]]

    def encoded(self, word: str) -> list[list[int]]:
        """A word as ids, at the beginning of a text and, where that is another token, behind a space."""
        plain, spaced = (self._tokenizer.encode(text, add_special_tokens=False) for text in (word, f" {word}"))
        return [plain, spaced] if spaced[0] != plain[0] and len(spaced) == len(plain) else [plain]

    def rule_out(self, logits: torch.Tensor, output: list[int], grammar: Json, stops: Iterable[int] = ()) -> None:
        """Take the tokens that a grammar (vLLM's `structured_outputs`) forbids out of each row. `stops`: ids that may
        end the turn besides the model's own.
        """
        ends = [*self._model.generation_config.eos_token_id, *stops]
        matcher = xgrammar.GrammarMatcher(self._compiled(grammar), override_stop_tokens=ends)
        allowed = xgrammar.allocate_token_bitmask(1, VOCABULARY)
        for row, token in zip(logits, output, strict=True):
            if matcher.fill_next_token_bitmask(allowed):
                xgrammar.apply_token_bitmask_inplace(row[None], allowed)
            assert matcher.accept_token(token)

    def _compiled(self, grammar: Json) -> xgrammar.CompiledGrammar:
        """As vLLM's xgrammar backend does it."""
        if tag := grammar.get("structural_tag"):
            return self._compiler.compile_structural_tag(tag)
        if regex := grammar.get("regex"):
            return self._compiler.compile_regex(regex)
        schema = '{"type": "object"}' if grammar.get("json_object") else grammar["json"]
        written = schema if isinstance(schema, str) else json.dumps(schema)
        return self._compiler.compile_json_schema(written, any_whitespace=True)
