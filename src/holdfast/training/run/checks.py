"""The checks before anything is sampled or written. Each refusal is one line that says what to
do."""

import inspect
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from holdfast.engine.connect import EngineAddress
from holdfast.policy.client.endpoint import Endpoint
from holdfast.policy.client.replicas import EnginePolicy
from holdfast.policy.rendering.select import BYTES
from holdfast.records.errors import HoldfastError, UsageError
from holdfast.records.foreign import frames_of, headline_of, readable
from holdfast.records.samples.logprobs import PROCESSING, LogprobsMode, distribution_of, mode_with
from holdfast.records.sampling import Sampling
from holdfast.records.task import Task
from holdfast.rollout.code.load import format_error
from holdfast.training.computation import Loss
from holdfast.training.model.memory import free_memory
from holdfast.training.objective.losses import LossParts, TokenBatch
from holdfast.training.objective.objective import Objective
from holdfast.training.run.folder import WEIGHTS
from holdfast.training.settings import TrainingSettings

_HEADS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
"""The last words in the class names of models that sample text."""


# --- the call


def check_arguments(journal: object, *, loss: object) -> None:
    """Raises `UsageError` for common mistakes in the arguments."""
    if not isinstance(journal, Path | str) and not hasattr(journal, "next_batch"):
        raise UsageError(f"journal is a journal or its path, not {journal!r:.100}")
    if loss is not None and not callable(loss):
        raise UsageError(
            f"loss is a function of your own, not {loss!r:.100}; for one of ours, give "
            "settings=TrainingSettings.of(NAME)"
        )
    if loss is not None:
        check_loss(loss)


# --- the model


def check_model(folder: Path) -> None:
    """Raises `UsageError` if the folder holds no causal LM in safetensors."""
    if not folder.is_dir():
        raise UsageError(f"the model {folder} does not exist: give the folder of a model")
    if (folder / "manifest.json").is_file():
        weights = folder.parent.parent / WEIGHTS
        raise UsageError(f"{folder} is a checkpoint: give the model of a step, in {weights}")
    config = _read_json(folder / "config.json")
    made = config.get("architectures")
    if isinstance(made, list) and made and not any(str(name).endswith(_HEADS) for name in made):
        raise UsageError(f"{folder} holds a {made[0]}, which is not a causal LM: give one that is")
    if not any(folder.glob("*.safetensors")):
        raise UsageError(
            f"{folder} has no weights in safetensors: save them there "
            "(model.save_pretrained(folder) in transformers)"
        )


def _read_json(path: Path) -> dict[str, object]:
    if not path.is_file():
        raise UsageError(f"{path.parent} is not a Hugging Face folder: it has no {path.name}")
    try:
        data = json.loads(path.read_text())
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}") from error
    return data if isinstance(data, dict) else {}


def count_parameters(folder: Path) -> int:
    """Returns the number of parameters, from the headers of the model's files. Raises `UsageError`
    for a damaged file."""
    from safetensors import SafetensorError, safe_open

    total = 0
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as file:
                total += sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118 - no mapping
        except (SafetensorError, OSError) as error:
            raise UsageError(f"{path} is damaged ({error}): copy the model again") from error
    return total


# --- the machine


def check_device(name: str) -> None:
    """Raises `UsageError` for a device that torch does not have here."""
    kind, _, number = name.partition(":")
    if kind not in ("cpu", "cuda") or (number and not number.isdecimal()):
        raise UsageError(f"device {name!r} is none of cpu, cuda, cuda:0, cuda:1, …")
    if kind == "cuda" and not torch.cuda.is_available():
        raise UsageError(
            f"device {name!r}: torch {torch.__version__} sees no GPU on this machine; use "
            "--device cpu, or install a torch that is built for the GPU"
        )
    if kind == "cuda" and int(number or 0) >= torch.cuda.device_count():
        raise UsageError(f"device {name!r}: this machine has {torch.cuda.device_count()} GPUs")


def check_memory(folder: Path, settings: TrainingSettings, address: EngineAddress) -> None:
    """Raises `UsageError` if weights, gradients and optimizer do not fit into memory. If the engine
    is started here, its copy of the model is counted too. Activations need more memory, which is
    not counted."""
    parameters = count_parameters(folder)
    needed = memory_needed(parameters, settings, has_engine=not address.urls)
    free = free_memory(settings.device)
    vllm = None if address.urls else address.vllm
    if free is not None and vllm is not None and vllm.memory and settings.device != "cpu":
        total = total_memory(settings.device)
        check_shares(total, free, needed, parameters * _bytes_of(vllm.dtype), share=vllm.memory)
    if free is not None and needed > free:
        where = "memory" if settings.device == "cpu" else f"memory on {settings.device}"
        raise UsageError(
            f"training {folder} takes at least {needed / 1e9:.1f} GB of {where}, and "
            f"{free / 1e9:.1f} GB are free: train a LoRA adapter (--lora-rank 16), use --dtype "
            "bfloat16, or a smaller model"
        )


def check_shares(total: int, free: int, trainer: int, engine: int, *, share: float) -> None:
    """Raises `UsageError` if a trainer and an engine do not fit on one GPU. All sizes are in bytes.
    `engine` is the size of its weights; it also needs room for its cache."""
    for_engine = int(total * share)
    left = free - for_engine
    if engine < for_engine and trainer <= left:
        return
    raise UsageError(
        f"the GPU has {total / 1e9:.1f} GB, {free / 1e9:.1f} of them free: the engine's share "
        f"({100 * share:.0f} %, --engine-memory) is {for_engine / 1e9:.1f} GB and has to hold "
        f"{engine / 1e9:.1f} GB of weights and a cache; the trainer's is {max(left, 0) / 1e9:.1f} "
        f"GB and has to hold at least {trainer / 1e9:.1f}: change the share, train a LoRA adapter "
        "(--lora-rank 16), use --dtype bfloat16, or name an engine on another GPU (--policy URL)"
    )


def _bytes_of(dtype: str) -> int:
    return 4 if dtype == "float32" else 2


def total_memory(device: str) -> int:
    number = device.partition(":")[2]
    return int(torch.cuda.mem_get_info(int(number) if number else None)[1])


def memory_needed(parameters: int, settings: TrainingSettings, *, has_engine: bool) -> int:
    """Returns the bytes that training needs on each of its devices."""
    size = 2 if settings.dtype == "bfloat16" else 4
    copies = 1 + (has_engine and settings.device == "cpu") + _has_reference(settings)
    trained = 0 if settings.lora else parameters
    master = 4 if size < 4 else 0
    # Two moments in float32.
    needed = parameters * size * copies + trained * (size + 8 + master)
    return needed if settings.device == "cpu" else needed // settings.ranks


def _has_reference(settings: TrainingSettings) -> bool:
    """Returns whether a second model is loaded as the reference. With LoRA, the model without its
    adapter can be the reference."""
    has_kl = bool(settings.trainer.objective.kl.coefficient)
    return has_kl and (settings.lora is None or settings.reference is not None)


# --- tasks and sampling


def check_batch(tasks: Sequence[Task], groups: int) -> None:
    if groups > len(tasks):
        raise UsageError(
            f"groups={groups} is more than the {len(tasks)} tasks: a step would have the same task "
            f"several times; give at most {len(tasks)} (--groups), or more tasks"
        )


def describe_shared(tasks: Sequence[Task], held_out: Sequence[Task]) -> str:
    """Returns a warning if some held-out tasks are also trained on; "" otherwise."""
    trained = {_question(task) for task in tasks}
    shared = [task.id for task in held_out if _question(task) in trained]
    if not shared:
        return ""
    return (
        f"the trained tasks include {len(shared)} of the {len(held_out)} held-out tasks (for "
        f"instance {shared[0]!r}): their rewards say nothing about other tasks"
    )


def _question(task: Task) -> bytes:
    """Returns a key that is equal for equal tasks. The key includes the ground truth, because
    different tasks may begin with the same messages."""
    return msgspec.json.encode((task.messages, task.ground_truth))


def check_sampling(sampling: Sampling) -> None:
    """Raises `UsageError` for sampling settings with which the sampled distribution would differ
    from the trained distribution."""
    if altering := sampling.altered_by:
        raise UsageError(
            f"training needs the model's own distribution: leave out {', '.join(altering)}"
        )
    if not sampling.temperature > 0:
        raise UsageError("training needs a temperature above 0: at 0 nothing is explored")


def check_stop_token_ids(sampling: Sampling, model: Path) -> None:
    """Raises `UsageError` for a stop token id that is outside of the model's vocabulary. An engine
    would refuse such an id only when it gets a request, after the training was recorded with it."""
    known = _read_json(model / "config.json").get("vocab_size")
    for token in sampling.stop_token_ids:
        if isinstance(known, int) and token >= known:
            raise UsageError(
                f"stop_token_ids: {token} is out of the vocabulary of {model}, which has {known:,} "
                "tokens: change it, or leave it out"
            )


# --- the engine


def check_logprobs(policy: EnginePolicy, sampling: Sampling) -> None:
    """Raises `UsageError` if the engine's logprobs belong to another distribution than the one that
    is sampled."""
    mode = mode_with(policy.logprobs_mode, sampling)
    if mode in (LogprobsMode.RAW, LogprobsMode.TEMPERED):
        raise UsageError(
            f"the logprobs of {policy.endpoints[0].name} are {mode}: at "
            f"{distribution_of(sampling)} they are not of the distribution that is sampled from; "
            f"start it so ({PROCESSING}), or give --temperature 1"
        )


def check_tokenizer(policy: EnginePolicy, model: Path, *, renderer: str) -> None:
    """Raises `UsageError` if an engine has another tokenizer than `model`."""
    for endpoint in policy.endpoints:
        described = endpoint.described
        own = model / "tokenizer.json"
        other = Path(described.root or "") / "tokenizer.json"
        if described.renderer == BYTES != renderer:
            raise _other_tokenizer(endpoint, "bytes", model)
        if own.is_file() and other.is_file() and _vocabulary(own) != _vocabulary(other):
            raise _other_tokenizer(endpoint, f"those of {described.root}", model)


def _other_tokenizer(endpoint: Endpoint, what: str, model: Path) -> UsageError:
    return UsageError(
        f"the tokens of {endpoint.name} are {what}, not those of {model}: start it with the model "
        "that is trained, or train the model that it serves (--model)"
    )


def _vocabulary(path: Path) -> object:
    vocabulary = _read_json(path)
    model = vocabulary.get("model")
    return (model.get("vocab") if isinstance(model, dict) else None, vocabulary.get("added_tokens"))


# --- a loss of the user's own


class LossFailed(HoldfastError):
    """The user's own loss raised an error, or did not return a loss."""

    def __init__(self, message: str, traceback: str = ""):
        super().__init__(message)
        self.traceback = traceback


def loss_file(loss: Loss) -> str:
    """Returns FILE:NAME, from which another rank imports the loss. Raises `UsageError` if other
    ranks cannot import it."""
    name = getattr(loss, "__qualname__", type(loss).__qualname__)
    file = getattr(loss, "__globals__", {}).get("__file__")
    if not name.isidentifier() or not isinstance(file, str):
        raise UsageError(
            f"the loss {name} cannot be imported by other ranks: define it with `def` at the top "
            "level of a file"
        )
    return f"{Path(file).resolve()}:{name}"


def check_loss(loss: Callable[..., object]) -> None:
    """Raises `UsageError` for an object that cannot be called as a loss."""
    wants = "it is called as loss(batch, objective), and returns (loss, parts): docs/training.md"
    if inspect.iscoroutinefunction(loss):
        raise UsageError(f"the loss {_name(loss)} is async: write `def`; {wants}")
    try:
        signature = inspect.signature(loss)
    except ValueError:  # Some built-in callables have no signature.
        return
    try:
        signature.bind(None, None)
    except TypeError as error:
        raise UsageError(f"the loss {_name(loss)}{signature}: {error}; {wants}") from None


def _name(loss: Callable[..., object]) -> str:
    return str(getattr(loss, "__qualname__", repr(loss)))


def checked_loss(loss: Loss) -> Loss:
    """Wraps `loss` so that its errors are reported with the name of the loss."""
    name = _name(loss)

    def call(batch: TokenBatch, objective: Objective) -> tuple[torch.Tensor, LossParts]:
        try:
            returned: Any = loss(batch, objective)
        except Exception as error:
            frame = frames_of(error)[-1]
            where = f"{frame.filename}:{frame.lineno}"
            raise LossFailed(
                f"the loss {name} failed at {where}: {headline_of(error):.300}",
                format_error(error),
            ) from readable(error)
        if not _is_loss(returned):
            raise LossFailed(
                f"the loss {name} has to return (loss, parts), a tensor of one number and what "
                "policy_loss gives beside it: see docs/training.md"
            )
        if batch.logprobs.requires_grad and not returned[0].requires_grad:
            raise LossFailed(
                f"the loss {name} returned a number without a gradient: compute it from "
                "batch.logprobs, not detached"
            )
        return returned  # type: ignore[no-any-return]

    return call


def _is_loss(value: Any) -> bool:
    if not isinstance(value, tuple) or len(value) != 2:
        return False
    loss, parts = value
    return isinstance(loss, torch.Tensor) and loss.ndim == 0 and isinstance(parts, LossParts)
