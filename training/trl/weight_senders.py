"""The trainer's side of vLLM's weight transfer (0.28 and later), by NCCL or CUDA IPC.

Neither has been run on a GPU by this project: the tests check the calls and what is announced, with vLLM's own classes.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Callable, Iterable
from typing import Any

import torch

from rollyard.records.types import Json
from rollyard.training.transfer_publisher import TransferMethod

Tensors = Callable[[], Iterable[tuple[str, torch.Tensor]]]
"""Returns the weights by their names in a checkpoint, always in the same order."""


def model_tensors(model: Any) -> list[tuple[str, torch.Tensor]]:
    """Return a model's weights. Raises ValueError for weights that a transfer cannot send."""
    found = [(name, parameter.detach()) for name, parameter in model.named_parameters()]
    if any(".lora_" in name for name, _ in found):
        raise ValueError("a transfer sends all weights: publish adapters as files")
    if any(hasattr(tensor, "full_tensor") for _, tensor in found):
        raise ValueError("a transfer sends weights that one process holds: publish those of FSDP as files")
    return found


class NcclSender:
    """Broadcasts to engines on other GPUs, also of other hosts. vLLM has to be installed in the trainer's environment.

    Engines: --weight-transfer-config '{"backend": "nccl"}'.
    """

    method: TransferMethod = "nccl"

    def __init__(
        self,
        tensors: Tensors,
        *,
        address: str | None = None,
        connect: Callable[[Json], Any] | None = None,
        broadcast: Callable[[Iterable[tuple[str, torch.Tensor]], Any], None] | None = None,
    ) -> None:
        """`address`: that of this host, as the engines see it. `connect`, `broadcast`: by default vLLM's."""
        self._tensors = tensors
        self._address = address
        self._connect = connect or _vllm_connect
        self._broadcast = broadcast or _vllm_broadcast
        self._info: Json = {}
        self._group: Any = None

    def init_info(self, workers: int) -> Json:
        from vllm.utils.network_utils import get_ip, get_open_port

        self._info = {
            "master_address": self._address or get_ip(),
            "master_port": get_open_port(),
            "rank_offset": 1,  # the trainer is rank 0
            "world_size": workers + 1,
            "packed": True,
        }
        return self._info

    def open(self) -> None:
        self._group = self._connect(self._info)

    def update_info(self) -> Json:
        return _described(self._tensors())

    def send(self) -> None:
        self._broadcast(self._tensors(), self._group)

    def close(self) -> None:
        group, self._group = self._group, None
        if group is not None and hasattr(group, "destroy"):
            group.destroy()


class IpcSender:
    """Shares the weights with engines on the same GPUs, which copy them.

    Engines: --weight-transfer-config '{"backend": "ipc"}', and VLLM_ALLOW_INSECURE_SERIALIZATION=1 in their
    environment, because the handles are pickled.
    """

    method: TransferMethod = "ipc"

    def __init__(
        self,
        tensors: Tensors,
        *,
        share: Callable[[torch.Tensor], tuple[Any, ...]] | None = None,
        device_id: Callable[[], str] | None = None,
    ) -> None:
        """`share`, `device_id`: by default torch's."""
        self._tensors = tensors
        self._share = share or _cuda_handle
        self._device_id = device_id or _cuda_uuid
        self._shared: list[torch.Tensor] = []
        """The tensors of the running update, which must live until the engines have copied them."""

    def init_info(self, workers: int) -> Json:
        return {"packed": False}

    def open(self) -> None:
        pass

    def update_info(self) -> Json:
        named = [(name, tensor.contiguous()) for name, tensor in self._tensors()]
        self._shared = [tensor for _, tensor in named]
        device = self._device_id()
        handles = [{device: self._share(tensor)} for tensor in self._shared]
        return {**_described(named), "ipc_handles_pickled": base64.b64encode(pickle.dumps(handles)).decode()}

    def send(self) -> None:
        pass  # the engines copy while they answer /update_weights

    def close(self) -> None:
        self._shared = []


def _described(tensors: Iterable[tuple[str, torch.Tensor]]) -> Json:
    named = list(tensors)
    return {
        "names": [name for name, _ in named],
        "dtype_names": [str(tensor.dtype).removeprefix("torch.") for _, tensor in named],
        "shapes": [list(tensor.shape) for _, tensor in named],
    }


def _vllm_connect(info: Json) -> Any:
    from vllm.distributed.weight_transfer.nccl_common import trainer_init

    return trainer_init(info)


def _vllm_broadcast(tensors: Iterable[tuple[str, torch.Tensor]], group: Any) -> None:
    from vllm.distributed.weight_transfer.packed_tensor import packed_nccl_broadcast_producer

    packed_nccl_broadcast_producer(iterator=iter(tensors), group=group, src=0, post_iter_func=lambda pair: pair[1])
    torch.cuda.current_stream().synchronize()  # the optimizer may change the weights afterwards


def _cuda_handle(tensor: torch.Tensor) -> tuple[Any, ...]:
    from torch.multiprocessing.reductions import reduce_tensor

    _, arguments = reduce_tensor(tensor)
    return tuple(arguments)


def _cuda_uuid() -> str:
    return str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
