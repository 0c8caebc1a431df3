"""Measure the policy on held-out rooms, without servers: one core, a few hundred rooms per minute.

python -m examples.sokoban_policy.evaluate --model examples/sokoban_policy/model
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from examples.sokoban_policy.layouts import EVALUATION_SEED, distinct_rooms
from rollyard.records.script import ScriptParser, positive, run_script


def main(arguments: list[str] | None = None) -> None:
    parser = ScriptParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder with weights and tokenizer")
    parser.add_argument("--count", type=positive, default=500, help="number of rooms (default 500)")
    parser.add_argument("--first-seed", type=int, default=EVALUATION_SEED, help="first room seed (default 1000000000)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0: the most probable move (default)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sampling (default 0)")
    options = parser.parse_args(arguments)
    import torch
    from transformers import AutoTokenizer, Qwen3ForCausalLM

    from examples.sokoban_policy.play import play

    torch.set_num_threads(1)
    model = Qwen3ForCausalLM.from_pretrained(options.model, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    rooms = distinct_rooms(options.count, options.first_seed)
    played = play(model, tokenizer, rooms, temperature=options.temperature, seed=options.seed)
    error = (played.success * (1 - played.success) / len(rooms)) ** 0.5
    solved = [moves for moves, won in zip(played.moves, played.solved, strict=True) if won]
    print(f"success rate       {played.success:.1%} ± {1.96 * error:.1%} ({sum(played.solved)} / {len(rooms)})")
    print(f"moves when solved  {sum(solved) / max(1, len(solved)):.2f}")
    print(f"invalid answers    {sum(played.invalid)} episodes")
    print(f"CPU time           {time.process_time():.0f} s")


if __name__ == "__main__":
    run_script(main)
