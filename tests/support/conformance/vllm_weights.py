"""A real vLLM that takes weights by each way, and its model, whose head is its embedding.

A plain reload of weights would leave such a head as it was.
"""

import os
import shutil
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

import holdfast
from holdfast.weights.strategies.disk import WORKER
from support.conformance.engines import TINY
from support.conformance.vllm_server import VllmServer

_OPTIONS = (
    *("--enable-lora", "--max-lora-rank", "8", "--worker-extension-cls", WORKER),
    *("--weight-transfer-config", '{"backend": "holdfast"}'),
)


def write_tied_model(folder: Path, *, noise: float = 0.0) -> Path:
    """Writes the tiny model with random weights and a tied head. `noise` is the standard deviation
    of what is added to the weights that transformers starts with."""
    shutil.copytree(TINY, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = AutoConfig.from_pretrained(TINY)
    config.tie_word_embeddings = True
    torch.manual_seed(0)
    network = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * noise)
    network.save_pretrained(folder, safe_serialization=True)
    return folder


def server_of(model: Path, *options: str) -> VllmServer:
    return VllmServer(
        Path(os.environ["HOLDFAST_VLLM_PYTHON"]),
        lambda: model,
        longest=2048,
        options=(*_OPTIONS, *options),
        environment={
            "PYTHONPATH": str(Path(holdfast.__file__).parents[1]),
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
        },
    )
