"""What the engine's logprobs must be: the same weights in transformers, one forward pass in float32."""

from __future__ import annotations

from pathlib import Path

import torch
import xgrammar
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from tests.vllm.tiny_model import VOCABULARY


class Reference:
    """A tiny model as transformers computes it."""

    def __init__(self, folder: Path) -> None:
        torch.set_num_threads(1)  # more are slower on shared cores
        self._model = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self._tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        self._ends = self._model.generation_config.eos_token_id

    def logprobs(
        self, prompt: list[int], output: list[int], regex: str | None = None, temperature: float = 1.0
    ) -> list[float]:
        """Of each output token, after the regex has ruled tokens out and the rest was divided by the temperature."""
        with torch.no_grad():
            logits = self._model(torch.tensor([prompt + output])).logits[0, len(prompt) - 1 : -1]
        if regex is not None:
            self._rule_out(logits, output, regex)
        chosen = (logits / temperature).log_softmax(-1).gather(1, torch.tensor(output)[:, None])
        return [float(value) for value in chosen[:, 0]]

    def _rule_out(self, logits: torch.Tensor, output: list[int], regex: str) -> None:
        known = xgrammar.TokenizerInfo.from_huggingface(
            self._tokenizer, vocab_size=VOCABULARY, stop_token_ids=self._ends
        )
        matcher = xgrammar.GrammarMatcher(xgrammar.GrammarCompiler(known, max_threads=1).compile_regex(regex))
        allowed = xgrammar.allocate_token_bitmask(1, VOCABULARY)
        for row, token in zip(logits, output, strict=True):
            if matcher.fill_next_token_bitmask(allowed):
                xgrammar.apply_token_bitmask_inplace(row[None], allowed)
            assert matcher.accept_token(token)
