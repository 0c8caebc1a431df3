"""Generates rooms from seeds. The same seed yields the same room as in the reference implementation.

Raises InfeasibleRoom if no room with the requested parameters exists.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from numpy.random import MT19937, RandomState

from rollyard.resources_servers.grl_sokoban.game import BOX, FLOOR, PLAYER, TARGET, Room
from rollyard.resources_servers.grl_sokoban.geometry import Geometry, counted, geometry, why_infeasible
from rollyard.resources_servers.grl_sokoban.reverse_play import Start, reverse_play

LAYOUTS_A_SEED = 4
"""Number of layouts that the reference generates from a seed before it gives up on the seed."""
MAX_SEEDS = 64
"""Maximum number of seeds tried per room; the rows of the public dataset need at most 8."""
_SEEDS = 2**32


class InfeasibleRoom(ValueError):
    """No room exists for this specification, or none of the tried seeds yielded one."""


@dataclass(frozen=True, slots=True)
class RoomSpec:
    """The parameters that determine a room. Raises ValueError if the seed is out of range."""

    seed: int
    """An integer from 0 to 2**32 - 1."""
    dim_room: tuple[int, int] = (6, 6)
    """Rows and columns, including the outer wall."""
    num_boxes: int = 1
    search_depth: int = 100
    """Maximum number of moves in the reverse play, the backward search from the solved room."""

    def __post_init__(self) -> None:
        if not 0 <= self.seed < _SEEDS:
            raise ValueError(f"seed {self.seed} is out of range; expected an integer from 0 to {_SEEDS - 1}")


class Streams:
    """The reference's two random number generators. Not thread-safe.

    Reuse one instance, because creating the generators takes longer than generating a room.
    """

    def __init__(self) -> None:
        self._python = Random()
        self._mersenne = MT19937()
        self._numpy = RandomState(self._mersenne)
        self._words: list[int] = []
        self.random: Callable[[], float] = self._python.random
        self.bits: Callable[[int], int] = self._python.getrandbits

    def seed(self, seed: int) -> None:
        """Reseed both generators."""
        self._python.seed(seed)
        self._numpy.seed(seed)
        self._words.clear()

    def below(self, count: int) -> int:
        """Draw an integer below `count` like Python's `randint`, `choice` and `sample`.

        Like them, it consumes random bits even if `count` is 1.
        """
        width = count.bit_length()
        drawn = self.bits(width)
        while drawn >= count:
            drawn = self.bits(width)
        return drawn

    def numpy_below(self, count: int) -> int:
        """Draw an integer below `count` like numpy's legacy `randint`, which consumes no bits if `count` is 1."""
        mask = (1 << (count - 1).bit_length()) - 1
        while mask:
            if not self._words:
                # Drawn in batches, because one call takes as long as drawing a dozen words.
                self._words = self._mersenne.random_raw(16)[::-1].tolist()
            drawn = self._words.pop() & mask
            if drawn < count:
                return drawn
        return 0


def generate(spec: RoomSpec, streams: Streams | None = None) -> Room:
    """Generate the room for a specification. To generate many rooms, pass the same `streams` each time.

    If a seed yields no room, (1664525 * seed + 1013904223) mod 2**32 is tried next, up to MAX_SEEDS seeds in total.
    Raises InfeasibleRoom if no room can exist or none of these seeds yields one.
    """
    rows, cols = spec.dim_room
    description = f"a {rows}x{cols} room with {counted(spec.num_boxes)}"
    if reason := why_infeasible(rows, cols, spec.num_boxes, spec.search_depth):
        advice = "use a larger board, fewer boxes or a deeper search"
        raise InfeasibleRoom(f"{description} cannot exist: {reason}; {advice}")
    streams = streams or Streams()
    tables = geometry(rows, cols)
    seed = spec.seed
    for tries in range(1, MAX_SEEDS + 1):
        streams.seed(seed)
        if made := _from_seed(tables, spec, streams):
            return Room(rows, cols, *made, seed, tries)
        seed = (1664525 * seed + 1013904223) % _SEEDS
    raise InfeasibleRoom(
        f"found no seed for {description}: neither seed {spec.seed} nor the next {MAX_SEEDS - 1} seeds yield one; "
        "use a larger board, fewer boxes or a deeper search"
    )


def _from_seed(tables: Geometry, spec: RoomSpec, streams: Streams) -> tuple[bytes, bytes] | None:
    for _ in range(LAYOUTS_A_SEED):
        floor = _carve(tables, streams)
        free = [cell for cell in range(len(tables.cell)) if floor >> cell & 1]
        if len(free) <= spec.num_boxes + 1:
            return None
        player = free.pop(streams.numpy_below(len(free)))
        targets = tuple(free.pop(streams.numpy_below(len(free))) for _ in range(spec.num_boxes))
        start = reverse_play(tables, floor, targets, player, spec.search_depth)
        if start.distance:
            return _cells(tables, floor, targets, start.boxes, _walk(tables, floor, start, streams))
    return None


def _carve(tables: Geometry, streams: Streams) -> int:
    """Generate a random layout and return its floor as a set of interior cells, with one bit per cell."""
    random, bits, onward, stamps = streams.random, streams.bits, tables.onward, tables.stamps
    ahead = onward[streams.below(4)]
    cell = (1 + streams.below(tables.rows - 1)) * tables.cols
    cell += 1 + streams.below(tables.cols - 1)
    floor = 0
    for _ in range(tables.steps):
        if random() < 0.35:
            ahead = onward[streams.below(4)]
        cell = ahead[cell]
        mask = bits(3)
        while mask >= 5:
            mask = bits(3)
        floor |= stamps[mask][cell]
    return floor


def _walk(tables: Geometry, floor: int, start: Start, streams: Streams) -> int:
    """Return the player's cell after the reverse play and up to three random steps."""
    player = start.player
    if streams.random() > (0.8 if start.distance == 1 else 0.5):
        return player
    seen = {player, *start.boxes}
    for taken in (1, 2, 3):
        options = [there for there, *_ in tables.near[player] if floor >> there & 1 and there not in seen]
        if not options:
            break
        player = options[streams.below(len(options))]
        seen.add(player)
        if taken < 3 and streams.random() > 0.5:
            break
    return player


def _cells(
    tables: Geometry, floor: int, targets: tuple[int, ...], boxes: tuple[int, ...], player: int
) -> tuple[bytes, bytes]:
    fixed = bytearray(tables.rows * tables.cols)
    for number, cell in enumerate(tables.cell):
        if floor >> number & 1:
            fixed[cell] = FLOOR
    for target in targets:
        fixed[tables.cell[target]] = TARGET
    state = bytearray(fixed)
    for box in boxes:
        state[tables.cell[box]] = BOX
    state[tables.cell[player]] = PLAYER
    return bytes(fixed), bytes(state)
