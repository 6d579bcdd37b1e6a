"""The code that runs inside vLLM's worker processes, if vLLM is started with it:

    PYTHONPATH=… vllm serve MODEL \\
        --worker-extension-cls holdfast.weights.vllm_worker.WeightWorker \\
        --weight-transfer-config '{"backend": "holdfast"}'

The extension reports the device of a worker, and reloads tied embeddings, which vLLM on a CPU
leaves unchanged. The backend receives weights over TCP, from GPU to GPU, or from memory that it
shares with the trainer. It first receives all of them into the machine's memory, because a GPU has
no room for two models, and loads them only then. A sender that dies half-way has therefore changed
nothing. This module imports torch, vLLM and what `collective` needs. Holdfast itself never runs it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor
from vllm.config import set_current_vllm_config
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)

from holdfast.weights.carrier import Carrier, this_device
from holdfast.weights.collective import (
    BroadcastGroup,
    Rendezvous,
    TensorMeta,
    TorchGroup,
    receive,
    split,
)
from holdfast.weights.content import Fingerprint
from holdfast.weights.shared_memory import check_shared, read_shared

BACKEND = "holdfast"


@dataclass
class HoldfastInitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """The address at which the members of a group meet. The workers of this engine have the ranks
    from `rank_offset` on. For shared memory, there is no address, and `handle` is the handle of the
    test bytes."""

    carrier: str
    master_address: str = ""
    master_port: int = 0
    world_size: int = 0
    rank_offset: int = 0
    handle: dict[str, Any] | None = None


@dataclass
class HoldfastUpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """The description of the sent tensors, in the order in which they are sent. `handle` is the
    handle of the shared memory that holds them."""

    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]
    handle: dict[str, Any] | None = None


class HoldfastWeightTransferEngine(
    WeightTransferEngine[HoldfastInitInfo, HoldfastUpdateInfo]  # type: ignore[misc]
):
    """vLLM's side of a weight transfer. The model stays unchanged until `finish_weight_update`."""

    init_info_cls = HoldfastInitInfo
    update_info_cls = HoldfastUpdateInfo

    def __init__(self, *arguments: Any, **named: Any):
        super().__init__(*arguments, **named)
        self._group: BroadcastGroup | None = None
        self._received: dict[str, Tensor] = {}

    def init_transfer_engine(self, init_info: HoldfastInitInfo) -> None:
        self.shutdown()
        if init_info.handle is not None:
            check_shared(init_info.handle, self.device)
            return
        config = self.parallel_config
        within = config.data_parallel_index * config.world_size + config.rank
        at = Rendezvous(init_info.master_address, init_info.master_port, init_info.world_size)
        on_gpu = init_info.carrier == Carrier.NCCL
        self._group = TorchGroup(
            at,
            init_info.rank_offset + within,
            carrier=init_info.carrier,
            device=str(self.device) if on_gpu else "cpu",
        )

    def start_weight_update(self) -> None:
        self._received = {}

    def update_weights(self, update_info: dict[str, Any]) -> None:
        # Not the base class's method, which synchronizes an accelerator that a CPU does not have.
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: HoldfastUpdateInfo) -> None:
        metas = [
            TensorMeta(name, dtype, tuple(shape))
            for name, dtype, shape in zip(
                update_info.names, update_info.dtype_names, update_info.shapes, strict=True
            )
        ]
        if update_info.handle is not None:
            tensors = split(read_shared(update_info.handle, self.device), metas)
        elif self._group is not None:
            tensors = receive(self._group, metas)
        else:
            raise RuntimeError("init_weight_transfer_engine comes first")
        for name, tensor in tensors:
            self._received[name] = tensor.cpu()

    def finish_weight_update(self) -> None:
        received, self._received = self._received, {}
        if not received:
            raise RuntimeError("no weights were received")
        load(self.model, self.model_config, received.items())

    @staticmethod
    def trainer_send_weights(iterator: Any, trainer_args: Any) -> None:
        """Raises an error, because the trainer sends with Holdfast's own strategies. vLLM 0.27 and
        older require this method."""
        raise RuntimeError("Holdfast's trainer sends the weights itself")

    def shutdown(self) -> None:
        if self._group is not None:
            self._group.close()
            self._group = None


def load(model: Any, model_config: Any, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Loads a whole checkpoint into a model that is being served."""
    device = next(model.parameters()).device
    loaded = Fingerprint()
    model.holdfast_loaded = ""
    initialize_layerwise_reload(model)
    # The fingerprint is computed where the model is: a GPU reads its memory much faster.
    model.load_weights(loaded.of((name, tensor.to(device)) for name, tensor in tensors))
    finalize_layerwise_reload(model, model_config)
    _pack_head(model)
    model.holdfast_loaded = loaded.text


def _pack_head(model: Any) -> None:
    """Packs the head of a model again if the head shares its weights with the embedding. On a CPU,
    vLLM computes with a packed copy of the head, which a reload of such a model does not update."""
    head = getattr(model, "lm_head", None)
    head = getattr(head, "base_layer", head)
    is_tied = bool(getattr(model.config, "tie_word_embeddings", False))
    if head is None or not is_tied or head.weight.device.type != "cpu":
        return
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

    dispatch_cpu_unquantized_gemm(head, remove_weight=False)


class WeightWorker:
    """Methods that vLLM adds to its worker, for `/collective_rpc`."""

    vllm_config: Any
    model_runner: Any
    device: Any

    def holdfast_describe(self) -> dict[str, Any]:
        """Returns the worker's `Device` as plain values."""
        config = getattr(self.vllm_config, "weight_transfer_config", None)
        own = dict(msgspec.to_builtins(this_device(str(self.device))))
        return own | {"transfer": getattr(config, "backend", "")}

    def holdfast_loaded(self) -> str:
        """Returns the fingerprint of the weights that were loaded last; "" if none were loaded
        since the start."""
        return str(getattr(self.model_runner.model, "holdfast_loaded", ""))

    def holdfast_load(self, weights_path: str) -> int:
        """Reads a whole folder, and then loads its weights. Returns the number of tensors."""
        from safetensors.torch import load_file

        files = sorted(Path(weights_path).glob("*.safetensors"))
        if not files:
            raise FileNotFoundError(f"No such file or directory: {weights_path}")
        tensors: dict[str, Tensor] = {}
        for file in files:
            tensors |= load_file(file)
        with set_current_vllm_config(self.vllm_config), torch.no_grad():
            load(self.model_runner.model, self.vllm_config.model_config, tensors.items())
        if hasattr(self.model_runner, "reset_lora_state"):  # vLLM 0.26 has no such method.
            self.model_runner.reset_lora_state()
        return len(tensors)


WeightTransferEngineFactory.register_engine(BACKEND, HoldfastWeightTransferEngine)
