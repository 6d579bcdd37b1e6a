"""LiveMessage finds the part of a reply that can be sent while the reply is sampled.

The end of a reply decides what its beginning means: closing markup turns a text into a call, and
spaces at the end may be stripped. So this module sends only text that no end can change. That is
the text up to the first sign of markup, without the spaces at its end. If text may follow markup
(such as the end of reasoning), the renderer's own parser decides to which channel the text belongs.

Invariant: the sent text of a channel is a beginning of the text that the renderer's `parse` finds
in that channel when the reply is whole. The cost of a batch of tokens grows only with the batch,
except for a bounded number of full parses.
"""

import re
from array import array
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from functools import lru_cache, partial

from msgspec import Struct

from holdfast.policy.rendering.family import FamilyRenderer
from holdfast.policy.rendering.renderer import ByteRenderer, Renderer
from holdfast.policy.rendering.template import TemplateRenderer
from holdfast.records.message import Message

REPLACEMENT = "\ufffd"
"""The decoded text of a partial or invalid character."""
MAX_PARTIAL_TOKENS = 3
"""The most tokens of a character of which the last byte is missing: one for each of its other
bytes."""
MAX_HELD_TOKENS = 256
"""The most tokens that are held back because none of them ends a character."""


class StreamDetokenizer:
    """Decodes a growing list of tokens piece by piece. The cost of a piece does not grow with the
    length of the list.

    Tokens do not end where characters end, and the text of a token may depend on the token before
    it. So `take` decodes the new tokens together with some earlier tokens, and returns the text
    that the new tokens add. Tokens at the end that form only a part of a character wait for the
    rest of the character. All new texts together are the text of all tokens.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]):
        self._decode = decode
        self._context: list[int] = []
        """The tokens of the last new text."""
        self._before = ""
        """The text of `_context`."""
        self._held: list[int] = []

    def take(self, ids: Sequence[int]) -> str:
        """Adds `ids` and returns the new text, as far as it is certain."""
        self._held += ids
        for waiting in range(min(MAX_PARTIAL_TOKENS + 1, len(self._held))):
            text = self._text(waiting)
            if not text.endswith(REPLACEMENT):
                return self._advance(text, waiting)
        return self._advance(self._text(0), 0) if len(self._held) >= MAX_HELD_TOKENS else ""

    def _text(self, waiting: int) -> str:
        return self._decode(self._context + self._held[: len(self._held) - waiting])

    def _advance(self, text: str, waiting: int) -> str:
        new, end = text[len(self._before) :], len(self._held) - waiting
        self._context, self._held = self._held[:end], self._held[end:]
        self._before = self._decode(self._context)
        return new


MAX_PARSES = 16
_THINK = ("<think>", "</think>")
_TOOL = ("<tool_call>", "</tool_call>", "｜DSML｜")
# Markup between channels. Any other markup may begin a call, after which nothing is sent.
_BETWEEN = frozenset(
    (
        *_THINK,
        *("<think:opensource>", "</think:opensource>"),
        *("<|channel>", "<channel|>", "<|think|>"),
        *("<|content_thinking|>", "<|content_text|>", "<|end_message|>", "<|message_model|>"),
        *("<|channel|>", "<|message|>", "<|end|>", "<|start|>"),
    )
)
_WHOLE_IS_A_CALL = frozenset(("llama-3",))
"""Families whose calls are JSON without any markup around it."""
_CONTENT_AFTER = {"inkling": "<|content_text|>"}
"""The only markup after which text is content, for the families that have such markup. Other text
may be the name of a call there."""


class Channel(StrEnum):
    REASONING = "reasoning"
    CONTENT = "content"


ChannelText = tuple[Channel, str]


class Grammar(Struct, frozen=True):
    """The markup between the parts of a renderer's replies."""

    control: dict[int, str]
    """Tokens that are not text, with their markup."""
    markers: tuple[str, ...]
    """The texts of the tokens in `control`, and other texts that are markup however they are
    encoded."""
    whole_is_a_call: bool = False
    content_after: str | None = None
    """The only markup after which text is content, or None if there is no such limit."""


def grammar_of(renderer: Renderer) -> Grammar | None:
    """Returns the renderer's markup, or None if no part of a reply can be sent before its end."""
    if isinstance(renderer, ByteRenderer):
        control = {ByteRenderer.OPEN: "<|open|>", ByteRenderer.END: "<|end|>"}
        return Grammar(control, (*_THINK, *_TOOL))
    if isinstance(renderer, TemplateRenderer | FamilyRenderer):
        control = renderer.tokenizer.control_tokens
        family = renderer.family if isinstance(renderer, FamilyRenderer) else ""
        stops = {token: control.get(token, "") for token in renderer.stop_token_ids}
        markers = tuple(dict.fromkeys((*_THINK, *_TOOL, *control.values())))
        return Grammar(
            {**control, **stops},
            markers,
            whole_is_a_call=family in _WHOLE_IS_A_CALL,
            content_after=_CONTENT_AFTER.get(family),
        )
    return None


class LiveMessage:
    """A reply that is being sampled, and the text of it that can be sent already."""

    def __init__(
        self,
        renderer: Renderer,
        *,
        prompt: Sequence[int],
        tools: Sequence[dict[str, object]] = (),
        stop: Sequence[str] = (),
        bare: bool = False,
    ):
        """`bare` says that the whole reply is text, up to a stop string."""
        grammar = grammar_of(renderer)
        self._grammar = grammar or Grammar({}, ())
        self._control = {} if bare else self._grammar.control
        self._decode = partial(renderer.decode, special=False) if bare else renderer.decode
        self._renderer, self._prompt, self._tools = renderer, prompt, tools
        self._signs = _signs((*(() if bare else self._grammar.markers), *stop))
        self._ids: array[int] = array("i")
        self._text = StreamDetokenizer(self._decode)
        self._channel: Channel | None = Channel.CONTENT if bare else None
        """The channel of the present text, or None if it is not known yet."""
        self._unplaced = ""
        """The text since the last markup, while its channel is unknown."""
        self._held = ""
        """The text of the channel that is not sent yet, because it may still become markup."""
        self._sent: dict[Channel, list[str]] = {channel: [] for channel in Channel}
        self._parses = 0
        self._found: list[ChannelText] = []
        self._last_marker: str | None = None
        self.is_over = grammar is None
        """Whether no more text is sent before the reply is whole."""

    def take(self, ids: Sequence[int]) -> list[ChannelText]:
        """Adds sampled `ids` and returns the text that can be sent now."""
        start = 0
        for at, token in enumerate(ids):
            if self.is_over:
                break
            if token in self._control:
                self._take_text(ids[start:at])
                self._meet(self._control[token])
                self._ids.append(token)
                self._text = StreamDetokenizer(self._decode)
                start = at + 1
        if not self.is_over:
            self._take_text(ids[start:])
        texts, self._found = self._found, []
        return texts

    # --- text

    def _take_text(self, ids: Sequence[int]) -> None:
        if not len(ids) or self.is_over:
            return
        self._ids.extend(ids)
        text = self._text.take(ids)
        while text and not self.is_over:
            text = self._more(text)

    def _more(self, text: str) -> str:
        """Handles the text up to the first markup. Returns the text after that markup."""
        before = self._held if self._channel else self._unplaced
        whole = before + text
        # A marker may have begun in the text before, but it did not end there.
        sign = self._signs.whole.search(whole, max(0, len(before) - self._signs.longest))
        plain, rest = (whole[: sign.start()], whole[sign.end() :]) if sign else (whole, "")
        if self._channel is None:
            self._unplaced = plain
            self._place(is_whole=sign is None)
        else:
            self._held = plain
        if self._channel is not None:
            self._send_certain()
        if sign is not None:
            self._meet(sign[0])
        return rest

    def _meet(self, marker: str) -> None:
        self._channel, self._unplaced, self._held = None, "", ""
        self._last_marker = marker
        if marker not in _BETWEEN:
            self.is_over = True

    def _send_certain(self) -> None:
        assert self._channel is not None, "text has its channel before it is sent"
        # Spaces at the end, or before a marker, may be stripped later.
        end = len(self._held) - self._signs.open_length(self._held)
        certain = self._held[:end].rstrip()
        self._send(self._channel, certain)
        self._held = self._held[len(certain) :]

    def _send(self, channel: Channel, text: str) -> None:
        if text:
            self._found.append((channel, text))
            self._sent[channel].append(text)

    # --- its channel

    def _place(self, *, is_whole: bool) -> None:
        """Finds the channel of the text since the last markup. Does nothing unless `is_whole`,
        which says that no markup follows this text yet. If markup follows, the parser does not
        separate this text from the text after it."""
        text = _strip_end(self._unplaced)
        if not text.strip() or not is_whole:
            return
        self._parses += 1
        if self._parses > MAX_PARSES:
            self.is_over = True
            return
        message = self._renderer.parse(self._ids, prompt=self._prompt, tools=self._tools)
        ends = [
            item
            for item in Channel
            if self._ends_with(_strip_end(_channel_text(message, item)), text.strip())
        ]
        if len(ends) > 1:
            return  # More text will decide.
        if not ends or not self._goes_on(message, ends[0]):
            self.is_over = True
            return
        (self._channel,) = ends
        if self._channel is Channel.CONTENT:
            self._send(Channel.REASONING, self._unsent(message, Channel.REASONING))
        self._held = self._unsent(message, self._channel) + self._unplaced[len(text) :]
        self._unplaced = ""

    def _ends_with(self, parsed: str, text: str) -> bool:
        """Returns whether `parsed` ends with `text`, which holds no markup. Returns False if
        `parsed` ends with markup. In that case, the parser added the markup to close an open part,
        and only the letters are the same."""
        return parsed.endswith(text) and not parsed.endswith(self._signs.all)

    def _unsent(self, message: Message, channel: Channel) -> str:
        """Returns the parsed text that was not sent yet."""
        return _strip_end(_channel_text(message, channel))[len("".join(self._sent[channel])) :]

    def _goes_on(self, message: Message, channel: Channel) -> bool:
        """Returns whether the parsed text of the channel begins with the sent text, and will still
        do so when more tokens have come."""
        text, sent = _channel_text(message, channel), "".join(self._sent[channel])
        if channel is Channel.CONTENT and not self._is_content(text, is_first=not sent):
            return False
        return text.startswith(sent)

    def _is_content(self, text: str, *, is_first: bool) -> bool:
        grammar = self._grammar
        if grammar.content_after not in (None, self._last_marker):
            return False
        # Spaces before calls are stripped, but a reply without calls keeps them.
        return not is_first or not (
            text[:1].isspace() or (grammar.whole_is_a_call and text.startswith("{"))
        )


class _Signs(Struct, frozen=True):
    """Finds the markup that ends plain text."""

    all: tuple[str, ...]
    whole: re.Pattern[str]
    beginnings: frozenset[str]
    longest: int

    def open_length(self, text: str) -> int:
        """Returns how many characters at the end of the text may be the beginning of a sign."""
        for length in range(min(self.longest - 1, len(text)), 0, -1):
            if text[-length:] in self.beginnings:
                return length
        return 0


@lru_cache(maxsize=64)
def _signs(markers: tuple[str, ...]) -> _Signs:
    longest_first = sorted((marker for marker in markers if marker), key=len, reverse=True)
    return _Signs(
        tuple(longest_first),
        re.compile("|".join(map(re.escape, longest_first)) or r"(?!)"),
        frozenset(_beginnings(longest_first)),
        len(longest_first[0]) if longest_first else 0,
    )


def _beginnings(markers: Iterable[str]) -> Iterable[str]:
    return (marker[:length] for marker in markers for length in range(1, len(marker)))


def _channel_text(message: Message, channel: Channel) -> str:
    return message.text if channel is Channel.CONTENT else message.reasoning or ""


def _strip_end(text: str) -> str:
    """Removes spaces and partial characters at the end."""
    while text != (shorter := text.rstrip().rstrip(REPLACEMENT)):
        text = shorter
    return text
