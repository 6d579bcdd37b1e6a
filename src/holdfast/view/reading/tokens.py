"""The tokens of a branch, with what is recorded about each: id, logprob, mask and version."""

from array import array
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from msgspec import Struct

from holdfast.embedded.model.files import TINY
from holdfast.evaluation.report.writer import pieces_of
from holdfast.policy.rendering.renderer import ByteRenderer
from holdfast.records.encoding.tokens import unpack_ids, unpack_logprobs
from holdfast.records.errors import HoldfastError
from holdfast.records.history import History
from holdfast.records.run import RunSpec
from holdfast.records.step import Generated, VersionSource
from holdfast.view.reading.conversation import Tab

Decode = Callable[[Sequence[int]], str]
MAX_TOKENS = 800
"""The largest number of tokens in one part of a page."""
_LIMITS = (-0.05, -0.3, -0.7, -1.5, -3.0)


class Token(Struct, frozen=True):
    """One token of a prompt or a reply."""

    at: int
    """The token's index among the prompt's new tokens, or in the reply."""
    id: int
    text: str
    """The token's text, or "" if no tokenizer is available."""
    logprob: float | None
    version: str
    kind: str
    """One of `prompt`, `sampled` and `masked`."""

    @property
    def level(self) -> str:
        """Returns the CSS class of the token's colour."""
        if self.logprob is None:
            return self.kind
        return f"lp{sum(self.logprob < limit for limit in _LIMITS)}"


class Block(Struct, frozen=True):
    """Tokens of one kind that follow each other."""

    path: str
    kind: str
    tokens: list[Token]


def decoder_of(spec: RunSpec, tokenizer: str | None) -> Decode | None:
    """Returns a function that decodes the tokens of a run, or None if no tokenizer is available.
    Without `tokenizer`, tries the model's folder in the recorded command, and then our small model.
    Such a folder is used only if the run's renderer was made from it."""
    if tokenizer is not None:
        from holdfast.policy.rendering.tokenizer import load_tokenizer

        return load_tokenizer(tokenizer).decode
    if spec.renderer == ByteRenderer.name:
        return ByteRenderer().decode
    return next((decode for folder in _folders(spec) if (decode := _fitting(spec, folder))), None)


def _folders(spec: RunSpec) -> list[Path]:
    words = spec.command.words if spec.command is not None else ()
    named = [after for word, after in pairwise(words) if word == "--model"]
    base = Path(spec.command.folder) if spec.command is not None else Path()
    return [*(base / name for name in named), TINY]


def _fitting(spec: RunSpec, folder: Path) -> Decode | None:
    if not (folder / "tokenizer.json").is_file():
        return None
    try:
        from holdfast.policy.rendering.select import renderer_for

        family = "template" if spec.renderer.startswith("template:") else None
        renderer = renderer_for(str(folder), family=family)
    except (HoldfastError, ImportError):
        return None  # The ids are shown without texts, and the page says so.
    decode: Decode = renderer.tokenizer.decode  # type: ignore[attr-defined]
    return decode if renderer.name == spec.renderer else None


def blocks_of(history: History, tab: Tab, decode: Decode | None) -> list[Block]:
    """Returns the tokens of a branch, from its beginning."""
    chain: list[Generated] = []
    step = history.steps.get(tab.path)
    while isinstance(step, Generated):
        chain.append(step)
        step = history.steps.get(step.base) if step.base else None
    blocks = []
    for reply in reversed(chain):
        is_shared = reply.path in history.shared
        blocks += [_prompt(reply, decode), _reply(reply, decode, is_shared=is_shared)]
    return [block for block in blocks if block.tokens]


def _prompt(step: Generated, decode: Decode | None) -> Block:
    ids = unpack_ids(step.delta)
    texts = _texts(ids, decode)
    tokens = [Token(at, id_, texts[at], None, "", "prompt") for at, id_ in enumerate(ids)]
    return Block(step.path, "prompt", tokens)


def _reply(step: Generated, decode: Decode | None, *, is_shared: bool) -> Block:
    ids, logprobs = unpack_ids(step.ids), unpack_logprobs(step.logprobs)
    texts, versions = _texts(ids, decode), versions_of(step, len(ids))
    kind = "sampled" if step.trainable and not is_shared else "masked"
    tokens = [
        Token(at, id_, texts[at], logprobs[at] if at < len(logprobs) else None, versions[at], kind)
        for at, id_ in enumerate(ids)
    ]
    return Block(step.path, kind, tokens)


def _texts(ids: "array[int]", decode: Decode | None) -> list[str]:
    if decode is None:
        return [""] * len(ids)
    # A piece may be longer than a token where a character takes several.
    return pieces_of(ids, decode)


def versions_of(step: Generated, length: int) -> list[str]:
    """Returns the name of the weight version of each sampled token, or "unknown"."""
    versions = ["unknown"] * length
    for span in step.versions:
        name = span.version or "unknown"
        if span.source is VersionSource.ASSUMED:
            name = f"{name} (assumed)"
        versions[span.start : span.end] = [name] * (min(span.end, length) - span.start)
    return versions[:length]


def part_of(blocks: Sequence[Block], part: int) -> tuple[list[Block], int]:
    """Returns one part of the tokens, and the number of parts."""
    total = sum(len(block.tokens) for block in blocks)
    parts = max(1, -(-total // MAX_TOKENS))
    start = min(part, parts - 1) * MAX_TOKENS
    kept, at = [], 0
    for block in blocks:
        low, high = max(start - at, 0), start + MAX_TOKENS - at
        tokens = block.tokens[low : max(high, 0)] if low < len(block.tokens) else []
        if tokens:
            kept.append(Block(block.path, block.kind, tokens))
        at += len(block.tokens)
    return kept, parts
