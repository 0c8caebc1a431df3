"""A policy of half a million random weights that a real engine serves: Qwen3, float32, its own tokenizer and template.

    python -m tests.external.vllm.tiny_model FOLDER SEED...

writes the model of each seed to FOLDER/SEED.

The output head is not tied to the embeddings, because vLLM on a CPU keeps the old head of a tied model when weights are
reloaded. The logits are spread, so that two samples differ. Tokens have one to several characters, so that the text of
a sample is often tokenized differently than it was sampled. Another seed gives other weights with the same tokenizer.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from tests.external.vllm.corpus import corpus

VOCABULARY = 1024
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
"""Text tokens of their own, as in Qwen; a grammar may also spell them with several tokens."""
TEMPLATE = Path(__file__).with_name("chat_template.jinja")


def build(folder: Path, seed: int = 0) -> Path:
    written = tokenizer()
    written.save_pretrained(folder)
    _model(written, seed).save_pretrained(folder)
    return folder


def tokenizer() -> PreTrainedTokenizerFast:
    bpe = Tokenizer(models.BPE())
    bpe.normalizer = normalizers.NFC()
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIAL) - len(MARKS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(corpus(), trainer)
    bpe.add_special_tokens(list(SPECIAL))
    bpe.add_tokens(list(MARKS))
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=TEMPLATE.read_text(),
        clean_up_tokenization_spaces=False,
    )


def _model(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    pad, end = tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_end|>"])
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=16384,
        tie_word_embeddings=False,
        eos_token_id=end,
        pad_token_id=pad,
        bos_token_id=None,
        dtype="float32",
    )
    model = Qwen3ForCausalLM(config).to(torch.float32).eval()
    model.generation_config = GenerationConfig(eos_token_id=[end, pad], pad_token_id=pad)
    _draw(model, seed)
    return model


def _draw(model: Qwen3ForCausalLM, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weights in sorted(model.named_parameters()):
            if weights.dim() == 1:  # a norm
                weights.normal_(1.0, 0.1, generator=generator)
            else:
                # Logits with a deviation of about 2: an entropy near 5 of at most 6.9 nats.
                weights.normal_(0.0, 0.18 if name == "lm_head.weight" else 0.08, generator=generator)


if __name__ == "__main__":
    for given in sys.argv[2:]:
        print(build(Path(sys.argv[1]) / given, int(given)))
