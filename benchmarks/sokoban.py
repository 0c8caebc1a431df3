"""Rollyard's Sokoban engine compared with gym-sokoban 0.0.6, the basis of the GRL environment: sessions, steps, rooms.

Both play the same tuples alternately in one process. The result is the process's CPU time: the minimum over a few
rounds for each tuple, then the mean over tuples. A step includes drawing the board; in gym-sokoban,
drawing its image.
"""

import contextlib
import io
import random
import warnings
from collections.abc import Callable, Iterator
from itertools import islice
from time import process_time
from typing import Any, NamedTuple

import numpy as np

from rollyard.resources_servers.grl_sokoban.game import Game
from rollyard.resources_servers.grl_sokoban.generate_test_examples import tuples
from rollyard.resources_servers.grl_sokoban.generator import InfeasibleRoom, RoomSpec, generate

ROUNDS = 4
RUNS = 5
"""Repetitions per measurement, because a single Rollyard session is too short to measure."""
MOVES = (1, 3, 2, 4, 4, 2, 3, 1, 1, 2)
TARGETS = {"session": 75, "step": 500, "room": 25}
WORK = {"session": "room + 10 steps", "step": "one step", "room": "one room"}


class Gym(NamedTuple):
    env: Callable[..., Any]
    generate_room: Callable[..., Any]


def main() -> None:
    specs = list(reproducible(100))
    gym = quiet_gym()
    gym_times: dict[str, list[float]] = {work: [] for work in TARGETS}
    own_times: dict[str, list[float]] = {work: [] for work in TARGETS}
    for spec in specs:
        rounds = [(measure_gym(gym, spec), measure_own(spec)) for _ in range(ROUNDS)]
        for work in TARGETS:
            gym_times[work].append(min(gym_round[work] for gym_round, _ in rounds))
            own_times[work].append(min(own_round[work] for _, own_round in rounds))
    print(f"{len(specs)} tuples of the public task set, {ROUNDS} rounds, CPU time in microseconds, mean over tuples\n")
    print(f"{'work':<26}{'gym-sokoban':>12}{'Rollyard':>9}{'ratio':>9}{'target':>9}")
    for work, target in TARGETS.items():
        gym_mean, own_mean = (1e6 * sum(times[work]) / len(specs) for times in (gym_times, own_times))
        ratio = gym_mean / own_mean
        verdict = "met" if ratio >= target else "missed"
        label = f"{work} ({WORK[work]})"
        print(f"{label:<26}{gym_mean:>12.1f}{own_mean:>9.2f}{ratio:>8.0f}x{target:>8}x  {verdict}")


def reproducible(rows: int) -> Iterator[RoomSpec]:
    """Yield those of the first `rows` public tuples whose seed yields a valid room at the first try."""
    for spec in islice(tuples(42), rows):
        with contextlib.suppress(InfeasibleRoom):
            if generate(spec).tries == 1:
                yield spec


def measure_own(spec: RoomSpec) -> dict[str, float]:
    start = process_time()
    for _ in range(RUNS):
        generate(spec)
    room = process_time() - start

    start = process_time()
    for _ in range(RUNS):
        play(Game(generate(spec)))
    session = process_time() - start

    games = [Game(generate(spec)) for _ in range(RUNS)]
    start = process_time()
    for game in games:
        play(game)
    step = (process_time() - start) / len(MOVES)
    return {"room": room / RUNS, "session": session / RUNS, "step": step / RUNS}


def play(game: Game) -> None:
    for move in MOVES:
        game.step(move)
        game.board()


def measure_gym(gym: Gym, spec: RoomSpec) -> dict[str, float]:
    seed(spec.seed)
    start = process_time()
    # One call includes all of its internal tries; a failed call also counts.
    with contextlib.suppress(RuntimeError, RuntimeWarning):
        gym.generate_room(dim=spec.dim_room, num_steps=int(1.7 * sum(spec.dim_room)), num_boxes=spec.num_boxes)
    room = process_time() - start

    seed(spec.seed)
    with contextlib.redirect_stdout(io.StringIO()):
        start = process_time()
        env = gym.env(dim_room=spec.dim_room, num_boxes=spec.num_boxes, max_steps=100)
        env.reset()
        ready = process_time()
        for move in MOVES:
            env.step(move)
        end = process_time()
    return {"room": room, "session": end - start, "step": (end - ready) / len(MOVES)}


def seed(value: int) -> None:
    random.seed(value)
    np.random.seed(value)


def quiet_gym() -> Gym:
    """Import gym-sokoban without gym's deprecation notice, and silence imageio's warning at every image."""
    warnings.filterwarnings("ignore")
    with contextlib.redirect_stderr(io.StringIO()):
        from gym_sokoban.envs.room_utils import generate_room
        from gym_sokoban.envs.sokoban_env import SokobanEnv
    return Gym(SokobanEnv, generate_room)


if __name__ == "__main__":
    main()
