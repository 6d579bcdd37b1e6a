"""Loads a model folder as Hugging Face writes it: config, tokenizer, safetensors.

Loading unpickles no file, runs no code of the folder and contacts no hub. Some models are known to
depend on their neighbours in a batch, or cannot take this engine's attention. They are loaded as
they are and marked to run one sequence at a time. A folder without a causal LM is rejected, in one
line with the reason.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from msgspec import Struct

from holdfast.embedded.model import attention, files
from holdfast.records.errors import UsageError

_SIZES = ("num_hidden_layers", "num_attention_heads", "hidden_size")
_POSITIONS = ("max_position_embeddings", "max_seq_len", "n_positions", "context_length")
# Models with at least this many weights run on a GPU.
_LARGE = 50_000_000
_DEFAULT_LENGTH = 2048
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_MOVING_ROPE = ("dynamic", "longrope")
_UNLOADABLE = (
    OSError, ValueError, KeyError, RuntimeError, ImportError, AttributeError, TypeError,
)  # fmt: skip
"""The errors that transformers raises for a config or weights that its code for the model cannot
use.
"""


class LoadedModel(Struct, frozen=True):
    """A loaded model folder."""

    path: Path
    network: Any
    """The causal LM, in float32, in evaluation mode."""
    tokenizer: Any
    eos: frozenset[int]
    vocabulary: int
    """The number of logits. Token ids are below it."""
    max_length: int
    layers: int = 0
    heads: int = 0
    """The number of heads of keys and values."""
    head_size: int = 0
    why_solo: str = ""
    """Why its sequences run one at a time, or "" if they may share a pass."""
    steady: bool = True
    """Whether a token's position is encoded the same way however long the sequence becomes."""

    @property
    def solo(self) -> bool:
        return bool(self.why_solo)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Decodes ids with the tokenizer's core, without any cleaning afterwards."""
        backend = self.tokenizer.backend_tokenizer
        return str(backend.decode(list(ids), skip_special_tokens=skip_special_tokens))


def load(path: Path, *, max_length: int | None = None) -> LoadedModel:
    """Loads the folder. Raises `UsageError` if it cannot be served."""
    files.check(path)
    attention.register()
    config = _config(path)
    _check_causal(config, path)
    text = config.get_text_config()
    length = _length(max_length, longest_of(text), path)
    moving = _why_moving(text, length)
    network, why = _network(path, moving or _why_unbatchable(text))
    tokenizer = _tokenizer(path)
    return LoadedModel(
        path=path,
        network=network,
        tokenizer=tokenizer,
        eos=_eos(network, tokenizer),
        vocabulary=int(text.vocab_size),
        max_length=length,
        why_solo=why,
        steady=not moving,
        **({} if why else _sizes(text)),
    )


def _sizes(text: Any) -> dict[str, int]:
    """Returns the sizes of keys and values that the cache needs."""
    heads = text.num_attention_heads
    return {
        "layers": int(text.num_hidden_layers),
        "heads": int(getattr(text, "num_key_value_heads", None) or heads),
        "head_size": int(getattr(text, "head_dim", None) or text.hidden_size // heads),
    }


def _config(path: Path) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, ImportError) as error:
        why = _first_line(error)
        if "trust_remote_code" in str(error):
            why = "the model needs code of its own, and code of a folder is never run"
        raise UsageError(f"{path}/config.json cannot be read: {why}") from error


def _check_causal(config: Any, path: Path) -> None:
    from transformers import AutoModelForCausalLM

    kind = getattr(config, "model_type", "?")
    if config.is_encoder_decoder:
        raise UsageError(f"{path} is an encoder-decoder model ({kind}); only causal LMs are served")
    if type(config) not in AutoModelForCausalLM._model_mapping:  # noqa: SLF001  # no public name
        raise UsageError(f"{path} ({kind}) is not a causal LM: transformers has none of this kind")
    if not isinstance(getattr(config.get_text_config(), "vocab_size", None), int):
        raise UsageError(f"{path} ({kind}) does not say its vocab_size: not a language model")


def _why_unbatchable(text: Any) -> str:
    """Returns the reason why sequences of this model must not share a pass, or "" if no reason is
    known beforehand."""
    if any((getattr(text, name, None) or 0) > 1 for name in _EXPERTS):
        return "a mixture of experts, where it shows which rows share an expert"
    missing = [name for name in _SIZES if not isinstance(getattr(text, name, None), int)]
    return f"not a plain transformer decoder: it has no {missing[0]}" if missing else ""


def _why_moving(text: Any, length: int) -> str:
    """Returns the reason why sequences must not share a pass: the model's position encoding depends
    on the sequence's length. Returns "" for other models."""
    rope = getattr(text, "rope_parameters", None) or {}
    if rope.get("rope_type") not in _MOVING_ROPE:
        return ""
    still = int(rope.get("original_max_position_embeddings") or length)
    if length <= still:
        return ""
    return (
        f"its position encoding ({rope['rope_type']}) changes with the length of the sequence "
        f"above {still} positions; with --max-model-len {still} it does not"
    )


def _network(path: Path, why_solo: str) -> tuple[Any, str]:
    """Returns the network and the reason why it must run one sequence at a time, or "" if it need
    not. The network keeps its own attention if `why_solo` is such a reason, or if its attention
    cannot be replaced."""
    if why_solo:
        return _load_network(path, "eager"), why_solo
    try:
        network = _load_network(path, attention.NAME)
        if _exchangeable(network):
            return network, ""
    except UsageError as error:
        # transformers names the attention implementation that it cannot use.
        if attention.NAME not in str(error.__cause__):
            raise
    return _load_network(path, "eager"), "its attention cannot be replaced by another"


def _exchangeable(network: Any) -> bool:
    """Returns whether the model's attention can be replaced. Some models accept any name of an
    attention and still use their own, without the mask that hides later tokens. They are recognised
    because the name that they report does not change."""
    network.set_attn_implementation("eager")
    config = network.config.get_text_config()
    let_go = bool(config._attn_implementation == "eager")  # noqa: SLF001  # set, but not asked for
    network.set_attn_implementation(attention.NAME)
    return let_go


def _load_network(path: Path, attending: str) -> Any:
    from transformers import AutoModelForCausalLM

    try:
        network, info = AutoModelForCausalLM.from_pretrained(
            path,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=torch.float32,
            attn_implementation=attending,
            output_loading_info=True,
        )
    except _UNLOADABLE as error:
        raise UsageError(f"{path} cannot be loaded: {_first_line(error)}") from error
    missing = sorted(info["missing_keys"]) + sorted(map(str, info["mismatched_keys"]))
    if missing:
        raise UsageError(f"{path} lacks weights, or has them in another shape: {missing[:3]}")
    return network.eval().requires_grad_(False).to(best_device(network))


def best_device(network: torch.nn.Module) -> torch.device:
    """Returns the GPU if there is one and the model is large enough. For a small model, the CPU is
    faster than sending work to a GPU."""
    is_large = sum(weight.numel() for weight in network.parameters()) >= _LARGE
    return torch.device("cuda" if is_large and torch.cuda.is_available() else "cpu")


def _tokenizer(path: Path) -> Any:
    from transformers import AutoTokenizer

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        return AutoTokenizer.from_pretrained(
            path, local_files_only=True, trust_remote_code=False, use_fast=True
        )
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"{path} has no usable tokenizer: {_first_line(error)}") from error


def longest_of(text: Any) -> int | None:
    """Returns how many positions the model was made for, or None if its configuration does not
    say."""
    sizes = (getattr(text, name, None) for name in _POSITIONS)
    return next((size for size in sizes if isinstance(size, int) and size > 0), None)


def _length(requested: int | None, longest: int | None, path: Path) -> int:
    if requested is not None and longest is not None and requested > longest:
        raise UsageError(
            f"--max-model-len {requested} is more than {path} was made for ({longest} positions)"
        )
    return requested or longest or _DEFAULT_LENGTH


def _eos(network: Any, tokenizer: Any) -> frozenset[int]:
    """Returns the ids that end a text, from generation_config.json, else from the config, else from
    the tokenizer."""
    eos_ids: set[int] = set()
    for source in (network.generation_config, network.config.get_text_config(), tokenizer):
        ids = getattr(source, "eos_token_id", None)
        if ids is not None and not eos_ids:
            eos_ids = {ids} if isinstance(ids, int) else set(ids)
    return frozenset(eos_ids)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
