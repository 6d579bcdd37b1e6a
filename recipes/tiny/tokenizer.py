"""The tiny policy's tokenizer: byte-level BPE with 1,024 entries, trained on our own text.

Any UTF-8 text comes back unchanged. Each digit is a token of its own, and so is each newline:
a text that ends with a newline has the same ids whatever follows, so that a prompt's ids are a
prefix of the conversation's ids. There is no normalization.
"""

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from recipes.tiny.demonstrations import Conversation, conversations
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

HERE = Path(__file__).parent
VOCABULARY = 1024
END_OF_TEXT = "<|endoftext|>"
END_OF_TURN = "<|im_end|>"
CONTROL = (END_OF_TEXT, "<|im_start|>", END_OF_TURN)
TAGS = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
MAX_LENGTH = 2048
_PIECES = r"\n|\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|[^\S\n]+(?!\S)|[^\S\n]+"
_CONVERSATIONS = 4000
_PROSE_WEIGHT = 12


def train_tokenizer(seed: int) -> PreTrainedTokenizerFast:
    """The same seed gives the same tokenizer, byte for byte."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[
            *(AddedToken(token, special=True, normalized=False) for token in CONTROL),
            *(AddedToken(token, special=False, normalized=False) for token in TAGS),
        ],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(seed), trainer)
    return wrapped(tokenizer)


def wrapped(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TURN,
        pad_token=END_OF_TEXT,
        clean_up_tokenization_spaces=False,
        model_max_length=MAX_LENGTH,
    )
    wrapped.chat_template = (HERE / "chat_template.jinja").read_text()
    return wrapped


def render(
    tokenizer: PreTrainedTokenizerFast, conversation: Conversation, *, prompt: bool = False
) -> str:
    """The conversation's text; as a prompt, with the opening of the assistant's next turn."""
    messages: Any = conversation.messages
    tools: Any = conversation.tools or None
    return str(
        tokenizer.apply_chat_template(
            messages, tools=tools, tokenize=False, add_generation_prompt=prompt
        )
    )


def _corpus(seed: int) -> Iterator[str]:
    """What will be tokenized, without the control tokens."""
    template = wrapped(Tokenizer(models.BPE()))
    control = re.compile("|".join(map(re.escape, (*CONTROL, *TAGS))))
    for conversation in islice(conversations(seed), _CONVERSATIONS):
        yield from control.split(render(template, conversation))
    prose = (HERE / "corpus.txt").read_text()
    for _ in range(_PROSE_WEIGHT):
        yield prose
