"""Expected logprobs of the engine: one forward pass of the same weights in transformers, in float32."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import torch
import xgrammar
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from rollyard.records.types import Json
from tests.external.vllm.tiny_model import VOCABULARY


class Reference:
    def __init__(self, folder: Path) -> None:
        torch.set_num_threads(1)  # more threads are slower on shared cores
        self._model = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self._tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        tokenizer_info = xgrammar.TokenizerInfo.from_huggingface(
            self._tokenizer, vocab_size=VOCABULARY, stop_token_ids=self._model.generation_config.eos_token_id
        )
        self._compiler = xgrammar.GrammarCompiler(tokenizer_info, max_threads=1)  # caches compiled grammars

    def logits(self, ids: list[int]) -> torch.Tensor:
        """Logits of shape (tokens, vocabulary); row i is for the token after the first i + 1 tokens."""
        with torch.no_grad():
            result: torch.Tensor = self._model(torch.tensor([ids])).logits[0]
            return result

    def logprobs(
        self, prompt: list[int], output: list[int], regex: str | None = None, temperature: float = 1.0
    ) -> list[float]:
        return self.chosen(self.logits(prompt + output), len(prompt), output, regex, temperature)

    def chosen(
        self, logits: torch.Tensor, start: int, output: list[int], regex: str | None = None, temperature: float = 1.0
    ) -> list[float]:
        rows = logits[start - 1 : start - 1 + len(output)].clone()
        if regex is not None:
            self.rule_out(rows, output, {"regex": regex})
        return self.of_chosen(rows / temperature, output)

    def of_chosen(self, logits: torch.Tensor, output: list[int]) -> list[float]:
        chosen = logits.log_softmax(-1).gather(1, torch.tensor(output)[:, None])
        return [float(value) for value in chosen[:, 0]]

    def encoded(self, word: str) -> list[list[int]]:
        """Ids of a word at the start of a text and, if they differ, after a space."""
        plain, spaced = (self._tokenizer.encode(text, add_special_tokens=False) for text in (word, f" {word}"))
        return [plain, spaced] if spaced[0] != plain[0] and len(spaced) == len(plain) else [plain]

    def rule_out(self, logits: torch.Tensor, output: list[int], grammar: Json, stops: Iterable[int] = ()) -> None:
        """Mask the tokens that a grammar (vLLM's `structured_outputs`) forbids in each row.

        `stops`: ids that may end the turn in addition to those of the model.
        """
        ends = [*self._model.generation_config.eos_token_id, *stops]
        matcher = xgrammar.GrammarMatcher(self._compiled(grammar), override_stop_tokens=ends)
        allowed = xgrammar.allocate_token_bitmask(1, VOCABULARY)
        for row, token in zip(logits, output, strict=True):
            if matcher.fill_next_token_bitmask(allowed):
                xgrammar.apply_token_bitmask_inplace(row[None], allowed)
            assert matcher.accept_token(token)

    def _compiled(self, grammar: Json) -> xgrammar.CompiledGrammar:
        if tag := grammar.get("structural_tag"):
            return self._compiler.compile_structural_tag(tag)
        if regex := grammar.get("regex"):
            return self._compiler.compile_regex(regex)
        schema = '{"type": "object"}' if grammar.get("json_object") else grammar["json"]
        schema_text = schema if isinstance(schema, str) else json.dumps(schema)
        return self._compiler.compile_json_schema(schema_text, any_whitespace=True)
