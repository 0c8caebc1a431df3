"""Write the training data: traces of optimal play with some random moves, in batches of traces of equal length.

python -m examples.sokoban_policy.make_data --output results/sokoban_policy/data.npz
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from random import Random

import numpy as np

from examples.sokoban_policy.layouts import Layout, Position, position_of, puzzle_of_layout, rooms
from examples.sokoban_policy.traces import Encoder, Trace, trace_of
from examples.sokoban_policy.vocabulary import build_tokenizer
from rollyard.records.script import ScriptParser, positive, run_script
from rollyard.resources_servers.grl_sokoban.task import NAMES, Symmetry

NOISE = 0.15
"""Share of random moves."""
MOST_TURNS = 14
LAYOUT_ROOMS = 30_000
"""Number of rooms from which the layouts of long starts are taken."""
BATCH_TOKENS = 4096


def starts(seed: int, rng: Random) -> Iterator[tuple[Layout, Position]]:
    """Yield starts from rooms of the training split, randomly rotated and reflected.

    Rooms are as frequent as the environment generates them. Every other start is any unsolved position of the room
    instead of the generated one.
    """
    for number, original in enumerate(rooms(seed, held_out=False)):
        room = Symmetry.named(rng.choice(NAMES)).room(original)
        layout = Layout(room.fixed)
        if number % 2:
            yield layout, position_of(room)
        else:
            yield layout, rng.choice([position for position, left in layout.distances.items() if left])


def long_starts(seed: int, rng: Random) -> Iterator[tuple[Layout, Position]]:
    """Yield starts of layouts that are equally frequent. Starts far from the solution are more frequent than others."""
    puzzles = {puzzle_of_layout(room.fixed): room for room in islice(rooms(seed, held_out=False), LAYOUT_ROOMS)}
    originals = list(puzzles.values())
    while True:
        room = Symmetry.named(rng.choice(NAMES)).room(rng.choice(originals))
        layout = Layout(room.fixed)
        weights = [left**2 for left in layout.distances.values()]
        yield layout, rng.choices(list(layout.distances), weights)[0]


def batches_of(
    encoder: Encoder, found: Iterable[tuple[Layout, Position]], tokens: int, rng: Random
) -> Iterator[list[Trace]]:
    """Yield batches of traces of equal length, about `tokens` tokens altogether."""
    waiting: dict[int, list[Trace]] = defaultdict(list)
    for layout, start in found:
        trace = trace_of(encoder, layout, start, rng, noise=NOISE, most_turns=MOST_TURNS)
        same = waiting[len(trace.ids)]
        same.append(trace)
        if (len(same) + 1) * len(trace.ids) > BATCH_TOKENS:
            yield waiting.pop(len(trace.ids))
            tokens -= len(same) * len(trace.ids)
        if tokens <= 0:
            return


def main(arguments: list[str] | None = None) -> None:
    parser = ScriptParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="the .npz file to write")
    parser.add_argument("--tokens", type=positive, default=9_000_000, help="tokens (default 9,000,000)")
    parser.add_argument("--long", action="store_true", help="prefer starts that are far from the solution")
    parser.add_argument("--seed", type=int, default=0, help="first room seed, and seed of random choices (default 0)")
    options = parser.parse_args(arguments)
    rng = Random(options.seed)
    found = long_starts(options.seed, rng) if options.long else starts(options.seed, rng)
    batches = list(batches_of(Encoder(build_tokenizer()), found, options.tokens, rng))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    traces = [trace for batch in batches for trace in batch]
    np.savez_compressed(
        options.output,
        shapes=np.array([(len(batch), len(batch[0].ids)) for batch in batches], np.int32),
        ids=np.array([token for trace in traces for token in trace.ids], np.int16),
        labels=np.array([label for trace in traces for label in trace.labels], np.int16),
    )
    turns = sum(len(trace.ids) for trace in traces) // 23
    print(f"{len(traces)} traces, {turns} turns, {len(batches)} batches -> {options.output}; "
          f"{time.process_time():.0f} s of CPU time")  # fmt: skip


if __name__ == "__main__":
    run_script(main)
