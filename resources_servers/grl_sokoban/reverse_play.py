"""Searches backwards from the solved room for the start positions of a generated room's boxes."""

from typing import NamedTuple

from rollyard.resources_servers.grl_sokoban.geometry import Geometry

MAX_EXPLORED = 300_000
"""Number of positions after which the reference stops its search."""


class Start(NamedTuple):
    """The best position found, with cells as interior numbers."""

    player: int
    boxes: tuple[int, ...]
    """In the order of their targets."""
    distance: int
    """Sum of the Manhattan distances of the boxes from their targets, in cells; 0 if no position was found."""


def reverse_play(geometry: Geometry, floor: int, targets: tuple[int, ...], player: int, depth: int) -> Start:
    """Search depth-first, last move first, for the position with the highest score: box changes times distance.

    `floor` is a set of interior cells as bits. The search order must be the reference's, because the first visit to a
    position determines its number of box changes; a different order would find different rooms.

    A position's key is one int: the player's cell, the occupied cells including walls as bits, and one bit per target
    whose box was never pulled, because the reference distinguishes such boxes from pulled ones.
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
