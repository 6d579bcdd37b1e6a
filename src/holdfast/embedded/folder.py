"""A model folder as Hugging Face writes it, loaded: config, tokenizer, safetensors.

Nothing is unpickled, no code of the folder is run and no hub is asked. What cannot be run with
results that are independent of the batch is refused here, in one line that says why.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from msgspec import Struct

from holdfast.embedded import attention, files
from holdfast.records.errors import UsageError

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_MOVING_ROPE = ("dynamic", "longrope")


class Model(Struct, frozen=True):
    """What the engine needs of a folder."""

    path: Path
    network: Any
    """The causal LM, in float32, in evaluation mode."""
    tokenizer: Any
    eos: frozenset[int]
    vocabulary: int
    """The number of logits; token ids are below it."""
    max_length: int
    layers: int
    heads: int
    """Of keys and values."""
    head_size: int

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Straight from the tokenizer's core: nothing is cleaned up afterwards."""
        backend = self.tokenizer.backend_tokenizer
        return str(backend.decode(list(ids), skip_special_tokens=skip_special_tokens))


def load(path: Path, *, max_length: int | None = None) -> Model:
    """Raises `UsageError` when the folder cannot be served."""
    files.check(path)
    attention.register()
    config = _config(path)
    _refuse_unfit(config, path)
    network = _network(path)
    tokenizer = _tokenizer(path)
    text = config.get_text_config()
    longest = int(getattr(text, "max_position_embeddings", 0) or 2048)
    heads = text.num_attention_heads
    length = _length(max_length, longest, config, path)
    return Model(
        path=path,
        network=network,
        tokenizer=tokenizer,
        eos=_eos(network, tokenizer),
        vocabulary=int(text.vocab_size),
        max_length=length,
        layers=int(text.num_hidden_layers),
        heads=int(getattr(text, "num_key_value_heads", None) or heads),
        head_size=int(getattr(text, "head_dim", None) or text.hidden_size // heads),
    )


def _config(path: Path) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, json.JSONDecodeError) as error:
        raise UsageError(f"{path}/config.json cannot be read: {_first_line(error)}") from error


def _refuse_unfit(config: Any, path: Path) -> None:
    text = config.get_text_config()
    kind = getattr(config, "model_type", "?")
    if config.is_encoder_decoder:
        raise UsageError(f"{path} is an encoder-decoder model ({kind}); only causal LMs are served")
    if any((getattr(text, name, None) or 0) > 1 for name in _EXPERTS):
        raise UsageError(
            f"{path} is a mixture of experts ({kind}): which rows share an expert would show in "
            "the results, so it is not served"
        )
    for name in ("num_hidden_layers", "num_attention_heads", "hidden_size", "vocab_size"):
        if not isinstance(getattr(text, name, None), int):
            raise UsageError(f"{path} ({kind}) does not say its {name}: not a transformer decoder")


def _network(path: Path) -> Any:
    from transformers import AutoModelForCausalLM

    try:
        network, info = AutoModelForCausalLM.from_pretrained(
            path,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=torch.float32,
            attn_implementation=attention.NAME,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        fixed = attention.NAME in str(error)
        why = "its attention cannot be replaced by another" if fixed else _first_line(error)
        raise UsageError(f"{path} cannot be loaded: {why}") from error
    missing = sorted(info["missing_keys"]) + sorted(str(one) for one in info["mismatched_keys"])
    if missing:
        raise UsageError(f"{path} lacks weights, or has them in another shape: {missing[:3]}")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return network.eval().requires_grad_(False).to(device)


def _tokenizer(path: Path) -> Any:
    from transformers import AutoTokenizer

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        return AutoTokenizer.from_pretrained(
            path, local_files_only=True, trust_remote_code=False, use_fast=True
        )
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"{path} has no usable tokenizer: {_first_line(error)}") from error


def _length(asked: int | None, longest: int, config: Any, path: Path) -> int:
    if asked is not None and asked > longest:
        raise UsageError(
            f"--max-model-len {asked} is more than {path} was made for ({longest} positions)"
        )
    length = asked or longest
    rope = getattr(config.get_text_config(), "rope_parameters", None) or {}
    if rope.get("rope_type") in _MOVING_ROPE:
        still = int(rope.get("original_max_position_embeddings") or longest)
        if length > still:
            raise UsageError(
                f"{path} changes its position encoding with the longest sequence of the batch "
                f"({rope['rope_type']}) above {still} positions: give --max-model-len {still}"
            )
    return length


def _eos(network: Any, tokenizer: Any) -> frozenset[int]:
    """The ids that end a text: those of generation_config.json, else of the config."""
    found: set[int] = set()
    for source in (network.generation_config, network.config.get_text_config(), tokenizer):
        ids = getattr(source, "eos_token_id", None)
        if ids is not None and not found:
            found = {ids} if isinstance(ids, int) else set(ids)
    return frozenset(found)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
