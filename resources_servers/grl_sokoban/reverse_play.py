"""Finds the start position of a generated room by searching backwards from the solved room."""

from typing import NamedTuple

from rollyard.resources_servers.grl_sokoban.geometry import Geometry

MAX_EXPLORED = 300_000
"""Number of explored positions after which the reference stops its search."""


class Start(NamedTuple):
    """The best start position that was found. Cells are given as interior numbers (see `Geometry`)."""

    player: int
    boxes: tuple[int, ...]
    """The boxes' cells, in the order of their targets."""
    distance: int
    """Sum of the Manhattan distances of the boxes from their targets, in cells; 0 if no position was found."""


def reverse_play(geometry: Geometry, floor: int, targets: tuple[int, ...], player: int, depth: int) -> Start:
    """Search depth-first for the position with the highest score: the number of box changes times the distance.

    A box change is a pull of a different box than the last one that was pulled.

    `floor` is a set of interior cells, with one bit per cell. Positions must be searched in the same order as in the
    reference, because the number of box changes is counted at the first visit to a position. Any other order would find
    different rooms.

    A position's key is one int. It contains the player's cell, one bit per occupied cell (including walls), and one bit
    per box that was never pulled, because the reference distinguishes these from boxes that were pulled.
    """
    near, bit, row, col = geometry.near, geometry.bit, geometry.row, geometry.col
    still = [bit[-1] << order for order in range(1, len(targets) + 1)]
    goals = sum(bit[target] for target in targets)
    walls = ((1 << len(bit)) - 1 ^ floor) * bit[0]
    key = player + walls + goals + sum(still)

    best, best_score = Start(player, targets, 0), 0
    explored: set[int] = set()
    stack = [(key, player, targets, 0, 0, -1, depth - 1)]
    while stack:
        key, player, boxes, changes, distance, last, left = stack.pop()
        if key in explored:
            continue
        if len(explored) >= MAX_EXPLORED:
            break
        explored.add(key)
        if changes * distance > best_score and not key & goals and player not in targets:
            best, best_score = Start(player, boxes, distance), changes * distance
        if left <= 1:
            continue
        for there, taken, behind in near[player]:
            if key & taken:
                continue
            if behind in boxes:
                order = boxes.index(behind)
                after = (key & ~(bit[behind] | still[order]) | bit[player]) + there - player
                if after in explored:
                    continue
                target = targets[order]
                nearer = abs(row[behind] - row[target]) + abs(col[behind] - col[target])
                moved = distance - nearer + abs(row[player] - row[target]) + abs(col[player] - col[target])
                pulled = (*boxes[:order], player, *boxes[order + 1 :])
                stack.append((after, there, pulled, changes + (order != last), moved, order, left - 1))
            elif (after := key + there - player) not in explored:
                stack.append((after, there, boxes, changes, distance, last, left - 1))
    return best
