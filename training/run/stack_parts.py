"""What the training loop needs of the stack. All of it runs in the event loop of the stack's clients."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from rollyard.training.batch import BatchSource
from rollyard.training.weights.weight_publisher import Publisher

Evaluate = Callable[[int], Awaitable[Mapping[str, float]]]
"""Evaluates the published weights, those after this number of updates, and returns metrics without a prefix."""
MeasureParity = Callable[[int, str, Sequence[Sequence[int]]], Awaitable[Mapping[str, float]]]
"""Compares engines and trainer on token sequences, after this number of updates and with this version. Returns `mean`
and `max` in nats, or nothing if it is not due."""


@dataclass(frozen=True, slots=True)
class StackParts:
    """The parts of a training run that call the stack."""

    source: BatchSource
    publisher: Publisher
    evaluate: Evaluate | None = None
    """None: no evaluation."""
    measure_parity: MeasureParity | None = None
    """None: parity is not measured."""
    close: Callable[[], Awaitable[None]] | None = None
    """Stops what still plays, at the end of training."""
