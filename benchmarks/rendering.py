"""Rendering: what a turn of a tool-using conversation costs, in a long one and in a short one.

The whole path of a turn is measured: the next prompt, parsing the completion, taking the turn in.
Answers are short, so that what grows with the history cannot hide behind what grows with them.
"""

import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from result import Result

SHORT, LONG = 8, 128
ROUNDS = 3
BOUND = "≤ 2.5"

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MARKUP = [
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
]
TEMPLATE = """{%- if tools %}
{{- '<|im_start|>tools\\n' + tools | tojson + '<|im_end|>\\n' }}{% endif %}
{%- for m in messages %}
{{- '<|im_start|>' + m.role + '\\n' + m.content }}
{%- for c in m.tool_calls or [] %}
{{- '<tool_call>' + {'name': c.function.name, 'arguments': c.function.arguments} | tojson }}
{{- '</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
TOOLS: tuple[dict[str, object], ...] = (
    {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}},
)


def measure() -> list[Result]:
    from holdfast.policy.rendering.select import renderer_for

    with model_folder() as folder:
        return [
            _result(
                "rendering: turn of 128 / of 8, family",
                _ratio(renderer_for(folder, family="qwen3")),
            ),
            _result(
                "rendering: turn of 128 / of 8, template",
                _ratio(renderer_for(folder, family="template")),
            ),
        ]


def _result(name: str, found: tuple[float, str]) -> Result:
    return Result(name, found[0], "x", BOUND, found[1])


def _ratio(renderer: object) -> tuple[float, str]:
    _conversation(renderer, SHORT)
    short, long, tokens = [], [], 0
    for _ in range(ROUNDS):
        short.append(min(_conversation(renderer, SHORT)[0] for _ in range(4)) / SHORT)
        seconds, tokens = _conversation(renderer, LONG)
        long.append(seconds / LONG)
    detail = f"{min(long) * 1e3:.2f} ms against {min(short) * 1e3:.2f} ms; {tokens:,} tokens"
    return min(long) / min(short), detail


def _conversation(renderer: object, turns: int) -> tuple[float, int]:
    from holdfast.policy.rendering.family import FamilyRenderer
    from holdfast.policy.rendering.template import TemplateRenderer
    from holdfast.records.encoding.tokens import pack_ids, unpack_ids
    from holdfast.records.message import Message, Role, user
    from holdfast.records.sampling import Sampling
    from holdfast.records.step import Generated
    from holdfast.rollout.replay.prompt import Stream

    assert isinstance(renderer, FamilyRenderer | TemplateRenderer)
    said = (
        "It may be so, or not. " * 10 + '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
    )
    ids = pack_ids([*renderer.tokenizer.encode(said), renderer.stop_token_ids[0]])
    stream, sampling = Stream(), Sampling()
    messages: list[Message] = [user("Look into it. " * 20)]
    began = time.process_time()
    for turn in range(turns):
        prompt = stream.next_prompt(messages, TOOLS, renderer=renderer, sampling=sampling)
        assert not prompt.prefix_break
        sent = stream.ids[: prompt.keep]
        sent.extend(prompt.delta)
        message = renderer.parse(unpack_ids(ids), prompt=sent, tools=TOOLS)
        assert len(message.tool_calls) == 1
        step = Generated(
            path=str(turn),
            fingerprint=prompt.fingerprint,
            base=prompt.base,
            keep=prompt.keep,
            delta=prompt.delta.tobytes(),
            ids=ids,
            logprobs=b"",
            engine_finish_reason="stop",
            versions=(),
            message=message,
            added=(),
            model="",
            sampling=sampling,
        )
        stream.advance(step, messages, TOOLS)
        messages += [message, Message(Role.TOOL, "Nothing. " * 20, name="look")]
    return time.process_time() - began, len(stream.ids)


@contextmanager
def model_folder(
    vocabulary: int = 500, *, special: Sequence[str] = SPECIAL, markup: Sequence[str] = MARKUP
) -> Iterator[Path]:
    """A folder with a tokenizer of a few hundred tokens, the markup of Qwen3 and a template."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([Path(__file__).read_text(encoding="utf-8")], trainer)
    tokenizer.add_special_tokens([AddedToken(one, normalized=False) for one in special])
    tokenizer.add_tokens([AddedToken(one, normalized=False) for one in markup])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokenizer.save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
        (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
        yield folder
