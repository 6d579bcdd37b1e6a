"""Tiny models of families whose sequences cannot share a pass, and of some that are not causal LMs.

Random weights, made from their configurations.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from support.embedded.tiny_models import EOS, VOCABULARY, _saved, _sizes, save_tokenizer

_SHORT = {"vocab_size": VOCABULARY, "eos_token_id": EOS, "bos_token_id": None}


def mixtral() -> Any:
    from transformers import MixtralConfig, MixtralForCausalLM

    return MixtralForCausalLM(MixtralConfig(**_sizes(num_local_experts=4, num_experts_per_tok=2)))


def qwen3_moe() -> Any:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    sizes = _sizes(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, head_dim=16)
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes))


def gemma2() -> Any:
    """Soft caps, and windows that end inside of the tests' sequences."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    return Gemma2ForCausalLM(Gemma2Config(**_sizes(head_dim=16, sliding_window=32)))


def bloom() -> Any:
    """Its positions are in the attention, and its attention is its own."""
    from transformers import BloomConfig, BloomForCausalLM

    return BloomForCausalLM(BloomConfig(hidden_size=64, n_layer=2, n_head=4, **_SHORT))


def falcon() -> Any:
    from transformers import FalconConfig, FalconForCausalLM

    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return FalconForCausalLM(FalconConfig(**sizes, **_SHORT))


def mpt() -> Any:
    from transformers import MptConfig, MptForCausalLM

    sizes = {"d_model": 64, "n_layers": 2, "n_heads": 4, "max_seq_len": 512}
    return MptForCausalLM(MptConfig(**sizes, **_SHORT))


def mamba() -> Any:
    from transformers import MambaConfig, MambaForCausalLM

    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "state_size": 4}
    return MambaForCausalLM(MambaConfig(**sizes, **_SHORT))


def rwkv() -> Any:
    from transformers import RwkvConfig, RwkvForCausalLM

    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "context_length": 512}
    return RwkvForCausalLM(RwkvConfig(**sizes, **_SHORT))


def recurrent_gemma() -> Any:
    """Keeps what it remembers inside of its layers, where the next sequence finds it."""
    from transformers import RecurrentGemmaConfig, RecurrentGemmaForCausalLM

    sizes = _sizes(num_hidden_layers=3, lru_width=64, attention_window_size=32)
    sizes = {key: sizes[key] for key in sizes if key != "max_position_embeddings"}
    return RecurrentGemmaForCausalLM(RecurrentGemmaConfig(**sizes))


FAMILIES = (mixtral, qwen3_moe, gemma2, bloom, falcon, mpt, mamba, rwkv, recurrent_gemma)
STRIDES = {mamba: 1, recurrent_gemma: 0}
"""Those that cannot go block by block: one token by one, and all of them anew for each."""


def t5() -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"vocab_size": VOCABULARY, "d_model": 32, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    return T5ForConditionalGeneration(T5Config(**sizes))


def vit() -> Any:
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 32}
    return ViTForImageClassification(ViTConfig(intermediate_size=32, **sizes))


def bert() -> Any:
    """It has a head for language, and looks at what follows."""
    from transformers import BertConfig, BertLMHeadModel

    sizes = _sizes()
    return BertLMHeadModel(BertConfig(**{key: sizes[key] for key in sizes if "key" not in key}))


def reformer() -> Any:
    """Its attention is drawn by lot."""
    from transformers import ReformerConfig, ReformerModelWithLMHead

    config = ReformerConfig(
        is_decoder=True, axial_pos_shape=[16, 16], axial_pos_embds_dim=[32, 32], hidden_size=64,
        num_attention_heads=2, attention_head_size=32, attn_layers=["local", "lsh"],
        feed_forward_size=64, max_position_embeddings=256, **_SHORT,
    )  # fmt: skip
    return ReformerModelWithLMHead(config)


def saved(made: Callable[[], Any], folder: Path, *, seed: int = 0) -> Path:
    torch.manual_seed(seed)
    return _saved(made(), folder)


def plainly_saved(made: Callable[[], Any], folder: Path) -> Path:
    torch.manual_seed(0)
    made().save_pretrained(folder)
    save_tokenizer(folder)
    return folder
