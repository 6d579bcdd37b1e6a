"""The weights of the fake engine, and what real engines were seen to do with them.

Its weights are the bytes of the tensors that it was given: other bytes sample other tokens. As in
vLLM 0.32 on a CPU: a reload of a model with tied embeddings answers 200 and keeps the old head;
prompts of some length are answered from a prefix cache that outlives the weights it was made with;
an update that fails half-way leaves a model whose next request ends the server; an update that was
begun and not finished blocks the next; an adapter's files are read again when a request names it.

Knows nothing of HTTP. `die` and `fail` name the step at which it is killed, or answers an error.
"""

import hashlib
import json
import os
import signal
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from holdfast.engine_api.errors import EngineRequestRejected
from holdfast.testing.fake_engine.options import FakeOptions
from holdfast.testing.fake_engine.schedule import FakeWeights

CACHE_BLOCK = 16
"""Tokens of a prompt from which on its beginning is in the prefix cache."""
_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "I64": "int64"}
_HEAD = "lm_head.weight"


class WeightOptions(Struct, frozen=True):
    """What a fake engine offers a trainer."""

    dev_mode: bool = True
    """`VLLM_SERVER_DEV_MODE=1`."""
    worker: bool = False
    """Whether vLLM was started with our worker extension."""
    keeps: bool = False
    """Whether it answers 200 to a reload and keeps its weights."""
    tied: bool = False
    """Whether its model's head is its embedding."""
    device: str = "cpu"
    gpu: str = ""
    """The UUID of its GPU."""
    dtype: str = "float32"
    max_lora_rank: int = 0
    """0: without `--enable-lora`."""
    runtime_lora: bool = True
    """`VLLM_ALLOW_RUNTIME_LORA_UPDATING=True`."""
    transfer: str = ""
    """The backend of `--weight-transfer-config`; "": none."""
    sessions: bool = True
    """Whether SGLang wants to be told where an update begins and ends, as it does since 2026."""
    die: str = ""
    """The step of an update at which it is killed."""
    fail: str = ""
    """The step of an update that fails."""
    fail_times: int = 0
    """How often it fails; 0: always."""


class WeightedOptions(FakeOptions, frozen=True):
    weights: WeightOptions = WeightOptions()


def content_of(tensors: Iterable[tuple[str, str, list[int], bytes]]) -> str:
    """What stands for weights: a digest of names, types, shapes and bytes."""
    result = hashlib.sha256()
    for name, dtype, shape, data in sorted(tensors, key=lambda tensor: tensor[0]):
        result.update(f"{name} {dtype} {shape}\n".encode())
        result.update(data)
    return result.hexdigest()


def read_folder(folder: Path) -> str:
    """The content of a folder's safetensors. Raises `OSError` or `ValueError`."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"No such file or directory: {folder}")
    return content_of(tensor for file in files for tensor in _read_file(file))


def _read_file(file: Path) -> Iterable[tuple[str, str, list[int], bytes]]:
    raw = file.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            dtype = _DTYPES.get(entry["dtype"], entry["dtype"])
            yield name, dtype, entry["shape"], raw[8 + length + start : 8 + length + end]


class LoadedWeights(FakeWeights):
    """`content` is what it samples with; None: whatever its version's name stands for."""

    def __init__(self, options: WeightOptions):
        self.options = options
        self.content: str | None = None
        self.fingerprint = ""
        """What our worker extension says that it loaded."""
        self.adapters: dict[str, Path] = {}
        self.is_half = False
        self.is_updating = False
        self._failures = 0
        self._adapter_contents: dict[str, str] = {}
        self._cache: dict[tuple[str, tuple[int, ...]], str] = {}

    def reach(self, step: str) -> None:
        """Kills the process, or raises, if that is what this step is for."""
        if self.options.die == step:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.options.fail == step and not 0 < self.options.fail_times <= self._failures:
            self._failures += 1
            raise worker_failed(f"{step} failed on purpose")

    # --- the model

    def load(self, folder: Path, *, fixes_head: bool) -> None:
        """Raises `EngineRequestRejected`, and is then half loaded if it had begun."""
        try:
            content = read_folder(folder)
        except (OSError, ValueError) as error:
            raise worker_failed(str(error)) from error
        if self.options.keeps:
            return
        self.is_half = True
        self.reach("reload")
        self.set(content, fixes_head=fixes_head)
        if self.options.worker:
            from holdfast.weights.content import fingerprint_of

            self.fingerprint = fingerprint_of(folder)

    def set(self, content: str, *, fixes_head: bool = True) -> None:
        before = self.content
        self.is_half = False
        self.content = content
        if self.options.tied and not fixes_head:
            self.content = f"{content} with the head of {before}"

    def reset_cache(self) -> None:
        self._cache.clear()

    # --- adapters

    def load_adapter(self, name: str, folder: Path) -> None:
        if not self.options.max_lora_rank:
            raise EngineRequestRejected(
                500,
                "LoRA is not enabled. Use --enable-lora to enable LoRA.",
                kind="InternalServerError",
            )
        if name in self.adapters:
            raise EngineRequestRejected(
                400,
                f"The lora adapter '{name}' has already been loaded. If you want to load the "
                "adapter in place, set 'load_inplace' to True.",
                kind="InvalidUserInput",
            )
        try:
            rank = json.loads((folder / "adapter_config.json").read_text())["r"]
            content = read_folder(folder)
        except OSError as error:
            message = f"Loading lora {name} failed: No adapter found for {folder}"
            raise EngineRequestRejected(404, message, kind="NotFoundError") from error
        if rank > self.options.max_lora_rank:
            raise EngineRequestRejected(
                400,
                f"LoRA rank {rank} is greater than max_lora_rank {self.options.max_lora_rank}.",
            )
        self.reach("load_adapter")
        self.adapters[name], self._adapter_contents[name] = folder, content

    def unload_adapter(self, name: str) -> None:
        if self.adapters.pop(name, None) is None:
            message = f"The lora adapter '{name}' cannot be found."
            raise EngineRequestRejected(404, message, kind="NotFoundError")

    # --- sampling

    def content_for(self, model: str, prompt: list[int], *, version: str) -> str | None:
        """What a request is sampled with, for as long as it runs; None: whatever is in force. Ends
        the process if the model is half loaded."""
        if self.is_half:
            os.kill(os.getpid(), signal.SIGKILL)
        if model in self.adapters:
            if not self.adapters[model].is_dir():
                raise worker_failed(f"No such file or directory: {self.adapters[model]}")
            return self._adapter_contents[model]
        current = self.content or version
        if len(prompt) < CACHE_BLOCK:
            return None
        beginning = tuple(prompt[: len(prompt) // CACHE_BLOCK * CACHE_BLOCK])
        cached = self._cache.setdefault((model, beginning), current)
        return None if cached == current else cached


def worker_failed(why: str) -> EngineRequestRejected:
    """As vLLM reports what a worker raised."""
    return EngineRequestRejected(
        500,
        f"Call to collective_rpc method failed: Worker failed with error '{why}', please check "
        "the stack trace above for the root cause",
        kind="InternalServerError",
    )
