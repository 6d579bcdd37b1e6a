"""Models small enough to be made in a test: random weights, a real tokenizer, no network."""

from pathlib import Path
from typing import Any

import torch

VOCABULARY = 512
EOS = 2
MAX_LENGTH = 1024
_TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.arguments.x }}</tool_call>"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_CORPUS = [
    "The sum of twelve and thirty is forty-two; ask the calculator for the rest. ",
    '<tool_call>{"name": "calculator", "arguments": {"x": "1 + 2"}}</tool_call> ',
    "A holdfast keeps kelp on its rock in a storm, whatever the waves do. Ünïcödé → ✓ 漢字. ",
] * 20


def save_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    fast.chat_template = _TEMPLATE
    fast.save_pretrained(folder)


def _sizes(**changes: Any) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": MAX_LENGTH,
        "eos_token_id": EOS,
        "bos_token_id": None,
        "pad_token_id": 0,
        **changes,
    }


def qwen2(folder: Path, *, seed: int = 0, **changes: Any) -> Path:
    """Two query heads for each key head, biases, untied embeddings."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    network = Qwen2ForCausalLM(Qwen2Config(**_sizes(tie_word_embeddings=False, **changes)))
    return _saved(network, folder)


def llama(folder: Path, *, seed: int = 0) -> Path:
    """One query head for each key head, no biases, tied embeddings."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    sizes = _sizes(num_key_value_heads=4, tie_word_embeddings=True)
    return _saved(LlamaForCausalLM(LlamaConfig(**sizes)), folder)


def gemma2(folder: Path, *, seed: int = 0) -> Path:
    """Its attention has a soft cap, which ours has not; tied embeddings, sliding windows."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    torch.manual_seed(seed)
    return _saved(Gemma2ForCausalLM(Gemma2Config(**_sizes(head_dim=16))), folder)


def _saved(network: Any, folder: Path) -> Path:
    with torch.no_grad():
        # Fresh weights are so small that every token is about as likely: let some stand out.
        for parameter in network.parameters():
            parameter.mul_(4.0 if parameter.dim() > 1 else 1.0)
    network.save_pretrained(folder)
    save_tokenizer(folder)
    return folder
