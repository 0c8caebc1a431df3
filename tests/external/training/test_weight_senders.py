"""What the senders announce and send, checked with vLLM's own classes. No GPU takes part."""

from __future__ import annotations

import base64
import pickle
from typing import Any

import peft
import pytest
import torch

from rollyard.training.train_config import LoraSettings
from rollyard.training.trl.policy_trainer import lora_config
from rollyard.training.trl.weight_senders import IpcSender, NcclSender, model_tensors
from tests.external.training.tiny_policy import make_model


class Group:
    def __init__(self, info: Any) -> None:
        self.info, self.sent, self.destroyed = info, list[tuple[str, torch.Tensor]](), False

    def destroy(self) -> None:
        self.destroyed = True


def test_the_nccl_sender_sends_what_it_announces_to_vllm() -> None:
    # Not at the top, because every run of this folder would import vLLM.
    from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferInitInfo, NCCLWeightTransferUpdateInfo

    model, groups = make_model(), []

    def connect(info: Any) -> Group:
        groups.append(Group(info))
        return groups[-1]

    def broadcast(tensors: Any, group: Group) -> None:
        group.sent = list(tensors)

    sender = NcclSender(lambda: model_tensors(model), address="127.0.0.1", connect=connect, broadcast=broadcast)
    joining = NCCLWeightTransferInitInfo(**sender.init_info(3))
    assert (joining.world_size, joining.rank_offset, joining.packed) == (4, 1, True)
    sender.open()
    announced = NCCLWeightTransferUpdateInfo(**sender.update_info())
    sender.send()
    (group,) = groups
    assert group.info["master_port"] == joining.master_port
    assert announced.names == [name for name, _ in group.sent] == [name for name, _ in model.named_parameters()]
    for (_, tensor), shape, dtype in zip(group.sent, announced.shapes, announced.dtype_names, strict=True):
        assert (list(tensor.shape), tensor.dtype) == (shape, getattr(torch, dtype))
    assert "lm_head.weight" in announced.names
    sender.close()
    sender.close()
    assert group.destroyed


def test_the_ipc_sender_announces_a_handle_for_every_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.distributed.weight_transfer.ipc_engine import IPCWeightTransferInitInfo, IPCWeightTransferUpdateInfo

    monkeypatch.setenv("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")
    model = make_model()
    sender = IpcSender(lambda: model_tensors(model), share=lambda tensor: (tensor.data_ptr(),), device_id=lambda: "gpu")
    assert not IPCWeightTransferInitInfo(**sender.init_info(1)).packed
    info = sender.update_info()
    handles = pickle.loads(base64.b64decode(info["ipc_handles_pickled"]))
    assert handles == [{"gpu": (parameter.data_ptr(),)} for parameter in model.parameters()]
    assert IPCWeightTransferUpdateInfo(**info).names == [name for name, _ in model.named_parameters()]


def test_adapters_are_not_sent() -> None:
    with pytest.raises(ValueError, match="adapters"):
        model_tensors(peft.get_peft_model(make_model(), lora_config(LoraSettings(rank=2))))
