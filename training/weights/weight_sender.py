"""WeightSender: the trainer's side of vLLM's weight transfer. Those for NCCL and CUDA IPC are in trl/."""

from __future__ import annotations

from typing import Literal, Protocol

from rollyard.records.types import Json

TransferMethod = Literal["nccl", "ipc"]


class WeightSender(Protocol):
    """Sends the trainer's current weights. Its methods block, and are called in other threads, one after another.

    NCCL operations cannot be interrupted: a method that does not return in time is abandoned with its thread, and
    `close` is called before the next attempt.
    """

    method: TransferMethod

    def init_info(self, workers: int) -> Json:
        """Return what engines with this total number of workers need to join (`init_info` of vLLM)."""
        ...

    def open(self) -> None:
        """Connect with the engines, which join at the same time."""
        ...

    def update_info(self) -> Json:
        """Return names, dtype_names and shapes of the weights, in the order in which they are sent (`update_info`)."""
        ...

    def send(self) -> None:
        """Send the weights, which the engines receive at the same time."""
        ...

    def close(self) -> None:
        """Give up the connection; never fails, and may be called without one."""
        ...
