"""Tiny models of many architectures, with random weights in which attention and windows matter."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from holdfast.training.model.plain import no_progress_bars
from support.embedded.tiny_models import EOS, VOCABULARY, _sizes

WINDOW = 64
BOUNDARY = 128
"""Positions from which on a moving encoding changes."""
_SHORT = {"vocab_size": VOCABULARY, "eos_token_id": EOS, "bos_token_id": None}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_WINDOWED = {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}


def _longrope() -> dict[str, Any]:
    positions = {"original_max_position_embeddings": BOUNDARY}
    factors = {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8, "factor": 8.0}
    rope = {"rope_type": "longrope", "rope_theta": 10_000.0, **positions, **factors}
    return _sizes(rope_parameters=rope, **positions)


def _dynamic() -> dict[str, Any]:
    rope = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 8.0}
    return _sizes(rope_parameters=rope, max_position_embeddings=BOUNDARY)


def _latent() -> dict[str, Any]:
    """Attention whose keys and values are compressed, and experts in groups."""
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    groups = {"n_group": 2, "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1}
    heads = {"qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16}
    ranks = {"q_lora_rank": 32, "kv_lora_rank": 16, "num_key_value_heads": 4}
    return _sizes(**experts, **groups, **heads, **ranks)


def _linear() -> dict[str, Any]:
    heads = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "head_dim": 16}
    sizes = {"linear_key_head_dim": 16, "linear_value_head_dim": 16}
    layers = ["linear_attention", "full_attention"]
    shared = {"shared_expert_intermediate_size": 32}
    return _sizes(layer_types=layers, **heads, **sizes, **shared, **_EXPERTS)


_LOCAL_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
SEQUENTIAL, REFUSED = "sequential", "refused"
PACKED = "packed"
Sizes = Callable[[], dict[str, Any]]
ARCHITECTURES: dict[str, tuple[str, Sizes, str]] = {
    "llama": ("Llama", _sizes, PACKED),
    "llama-dynamic-rope": ("Llama", _dynamic, REFUSED),
    "qwen2": ("Qwen2", _sizes, PACKED),
    "qwen2-window": ("Qwen2", lambda: _sizes(**_WINDOWED), PACKED),
    "qwen3": ("Qwen3", lambda: _sizes(head_dim=16), PACKED),
    "qwen3-moe": ("Qwen3Moe", lambda: _sizes(head_dim=16, **_EXPERTS), PACKED),
    "qwen2-moe-window": (
        "Qwen2Moe",
        lambda: _sizes(shared_expert_intermediate_size=32, **_EXPERTS, **_WINDOWED),
        SEQUENTIAL,
    ),
    "mistral-window": ("Mistral", lambda: _sizes(sliding_window=WINDOW), PACKED),
    "gemma2-window": ("Gemma2", lambda: _sizes(head_dim=16, sliding_window=WINDOW), SEQUENTIAL),
    "gemma3-window": ("Gemma3", lambda: _sizes(head_dim=16, sliding_window=WINDOW), PACKED),
    "phi3-longrope": ("Phi3", _longrope, REFUSED),
    "phimoe": ("Phimoe", lambda: _sizes(**_LOCAL_EXPERTS), PACKED),
    "gpt2": ("GPT2", lambda: {"n_embd": 64, "n_layer": 2, "n_head": 4, **_SHORT}, PACKED),
    "opt": ("OPT", lambda: _sizes(ffn_dim=128, word_embed_proj_dim=64), PACKED),
    "bloom": (
        "Bloom",
        lambda: {"hidden_size": 64, "n_layer": 2, "n_head": 4, **_SHORT},
        SEQUENTIAL,
    ),
    "falcon": (
        "Falcon",
        lambda: {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, **_SHORT},
        SEQUENTIAL,
    ),
    "olmo2": ("Olmo2", _sizes, PACKED),
    "gpt-neox": ("GPTNeoX", _sizes, PACKED),
    "mixtral": ("Mixtral", lambda: _sizes(**_LOCAL_EXPERTS), PACKED),
    "deepseek-v3": ("DeepseekV3", _latent, PACKED),
    "granite": ("Granite", lambda: _sizes(logits_scaling=4.0), SEQUENTIAL),
    "cohere": ("Cohere", lambda: _sizes(logit_scale=0.5), SEQUENTIAL),
    "stablelm": ("StableLm", _sizes, SEQUENTIAL),
    "gpt-oss": ("GptOss", lambda: _sizes(head_dim=16, **_LOCAL_EXPERTS), SEQUENTIAL),
    "qwen3-next": ("Qwen3Next", _linear, SEQUENTIAL),
    "mamba": (
        "Mamba",
        lambda: {"hidden_size": 64, "num_hidden_layers": 2, "state_size": 8, **_SHORT},
        SEQUENTIAL,
    ),
}
"""(name in transformers, sizes, how it is to be trained)."""


def make_model(name: str, folder: Path) -> Path:
    """A folder without a tokenizer."""
    import transformers

    kind, sizes, _ = ARCHITECTURES[name]
    configs = (f"{kind}Config", f"{kind}TextConfig")
    config = next(getattr(transformers, c) for c in reversed(configs) if hasattr(transformers, c))
    torch.manual_seed(0)
    network = transformers.AutoModelForCausalLM.from_config(config(**sizes()))
    with torch.no_grad():
        # Fresh weights are so small that attention is even: what is masked would not show.
        for parameter in network.parameters():
            parameter.mul_(4.0 if parameter.dim() > 1 else 1.0)
    with no_progress_bars():
        network.save_pretrained(folder)
    return folder
