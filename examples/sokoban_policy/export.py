"""Write a policy's weights in half of the space, as float16, with its tokenizer and chat template.

python -m examples.sokoban_policy.export --model results/sokoban_policy/run/final --output examples/sokoban_policy/model
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rollyard.records.script import ScriptParser, run_script


def main(arguments: list[str] | None = None) -> None:
    parser = ScriptParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder of a policy")
    parser.add_argument("--output", type=Path, required=True, help="folder to write")
    options = parser.parse_args(arguments)
    import torch
    from transformers import AutoTokenizer, Qwen3ForCausalLM

    model = Qwen3ForCausalLM.from_pretrained(options.model, dtype=torch.float16)
    model.save_pretrained(options.output)
    AutoTokenizer.from_pretrained(options.model).save_pretrained(options.output)
    size = sum(file.stat().st_size for file in options.output.iterdir())
    print(f"{model.num_parameters()} parameters, {size / 1e6:.1f} MB -> {options.output}")


if __name__ == "__main__":
    run_script(main)
