"""The tokens of one completion so far, from all tries and replicas.

`CompletionBuilder.take` checks everything from an engine. There must be as many finite logprobs as
ids, ids in range, the right prompt and the right model, and no more tokens than requested. A fault
raises an error that names it. Missing data is never filled in.
"""

import math
from array import array
from collections.abc import Sequence

import msgspec
from msgspec import Raw

from holdfast.policy.dialects.dialect import UNREADABLE, InvalidAnswer, Piece
from holdfast.policy.dialects.experts import fitted
from holdfast.policy.policy import Completion, Draft, Request
from holdfast.records.encoding.tokens import (
    TYPE_IDS,
    TYPE_LOGPROBS,
    pack_ids,
    pack_logprobs,
    unpack_ids,
    unpack_logprobs,
)
from holdfast.records.message import Message
from holdfast.records.samples.experts import ExpertRows
from holdfast.records.samples.logprobs import MAX_LOGPROB, LogprobsMode, worst
from holdfast.records.step import STOPPED, VersionSource, VersionSpan
from holdfast.records.usage import NOTHING, Usage

FINISHED = STOPPED | {"length", "content_filter"}
"""The finish reasons of a complete reply. `content_filter` means that a provider cut or withheld
the reply."""
ABORTED = "abort"
_encoder = msgspec.json.Encoder()


class CompletionBuilder:
    """An unfinished completion. `seams` are the positions at which it continued after an
    interruption."""

    def __init__(self, request: Request):
        draft = request.draft
        self.ids: array[int] = unpack_ids(draft.ids) if draft.ids else array(TYPE_IDS)
        self.logprobs: array[float] = (
            unpack_logprobs(draft.logprobs) if draft.ids else array(TYPE_LOGPROBS)
        )
        self.spans: list[VersionSpan] = list(draft.versions)
        self.seams: list[int] = [len(self.ids)] if self.ids else []
        self.saved = len(self.ids)
        self.finish_reason: str | None = None
        self.message: Message | None = None
        self.reasoning_tags: tuple[str, ...] = ()
        self._limit = request.sampling.max_tokens
        self._start = len(self.ids)
        self._prompt: array[int] = request.prompt
        self._prompt_json: Raw | None = None
        self._assumed = VersionSpan("", 0, 0, VersionSource.UNKNOWN)
        self._mode_before, self._mode = draft.logprobs_mode, LogprobsMode.UNKNOWN
        self._used = Usage(len(request.prompt), len(self.ids)) if self.ids else NOTHING
        """The usage of the tries before the present one."""
        self._stated: Usage | None = None
        """The usage that the engine reports for the present try, or None if it reports none."""
        self._prompt_length = len(request.prompt)
        self._experts_from = request.experts_from
        self._experts: ExpertRows | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def fresh(self) -> int:
        """Returns the number of tokens in the present try."""
        return len(self.ids) - self._start

    @property
    def logprobs_mode(self) -> LogprobsMode:
        """Returns the worst of the logprobs modes of all tokens so far. They may differ, because
        the engine may have restarted with other options."""
        if not self.ids:
            return LogprobsMode.UNKNOWN
        before = [self._mode_before] if self._start else []
        return worst([*before, self._mode] if self.fresh else before)

    def begin(
        self,
        prompt: "array[int]",
        *,
        version: str | None,
        is_named: bool = False,
        logprobs_mode: LogprobsMode = LogprobsMode.UNKNOWN,
        prompt_json: Raw | None = None,
    ) -> None:
        """Begins a try. `version` is the version of the engine's weights, or None if it is unknown.
        `is_named` says that the request asks for this version by name. `prompt_json` is the prompt
        as it is sent, if it is encoded already."""
        self._mode_before, self._mode = self.logprobs_mode, logprobs_mode
        self._close_try()
        if self._start != len(self.ids):
            self.seams.append(len(self.ids))
        self._start = len(self.ids)
        self._prompt, self._prompt_json = prompt, prompt_json
        self._experts = None
        self.assume(version)
        if version is not None and is_named:
            self._assumed = VersionSpan(version, 0, 0, VersionSource.ENGINE)

    @property
    def fresh_spans(self) -> list[VersionSpan]:
        """Returns the version spans of the present try."""
        self._cover()
        return [span for span in self.spans if span.end > self._start]

    def take(self, piece: Piece, *, model: str) -> None:
        """Checks and adds a piece. Raises `InvalidAnswer` and adds nothing if a check fails."""
        if piece.model is not None and piece.model != model:
            raise InvalidAnswer(f"model {piece.model!r} answered, not {model!r}")
        self._check_prompt(piece)
        ids = self._check_ids(piece.ids) if piece.ids else None
        if ids is not None:
            logprobs = check_logprobs(piece.logprobs, len(ids))
        elif piece.logprobs:
            raise InvalidAnswer(f"{len(piece.logprobs)} logprobs for no tokens")
        fresh = self.fresh + len(ids or ())
        if piece.total is not None and piece.total != fresh:
            raise InvalidAnswer(
                f"it sampled {piece.total} tokens by its own count, and sent {fresh}"
            )
        if piece.versions is not None:
            _check_spans(piece.versions, fresh)
        self._check_reason(piece, tokens=len(self.ids) + len(ids or ()))
        experts = self._check_experts(piece, fresh)
        # All checks have passed. From here on, nothing raises.
        if ids is not None:
            self.ids.extend(ids)
            self.logprobs.extend(logprobs)
        if piece.versions is not None:
            self._attribute_versions(piece.versions)
        if piece.message is not None:
            self.message, self.reasoning_tags = piece.message, piece.reasoning_tags
        self._stated = piece.usage or self._stated
        self._experts = experts or self._experts
        self.finish_reason = piece.finish_reason or self.finish_reason

    def _is_prompt(self, found: Sequence[int] | Raw) -> bool:
        if not isinstance(found, Raw):
            return pack(found) == self._prompt
        # Decoding a long prompt takes much longer than encoding and comparing it.
        prompt_json = self._prompt_json or Raw(_encoder.encode(self._prompt.tolist()))
        if found == prompt_json:
            return True
        try:
            return pack(msgspec.json.decode(found, type=list[int])) == self._prompt
        except UNREADABLE as error:
            raise InvalidAnswer(f"the answer is malformed ({error})") from error

    def _check_ids(self, ids: "list[int] | array[int] | object") -> "array[int]":
        checked = pack(ids)
        if min(checked) < 0:
            raise InvalidAnswer("a token id is negative")
        if self.finish_reason is not None:
            raise InvalidAnswer(f"it goes on after its finish_reason {self.finish_reason!r}")
        if len(self.ids) + len(checked) > self._limit:
            raise InvalidAnswer(f"{len(self.ids) + len(checked)} tokens, more than max_tokens")
        return checked

    def _check_prompt(self, piece: Piece) -> None:
        if piece.prompt is not None and not self._is_prompt(piece.prompt):
            raise InvalidAnswer("it answers another prompt: prompt_token_ids are not those sent")
        if piece.prompt_tokens is not None and piece.prompt_tokens != len(self._prompt):
            sent = f"{len(self._prompt)} were sent"
            raise InvalidAnswer(
                f"it answers another prompt: of {piece.prompt_tokens} tokens, and {sent}"
            )

    def _check_reason(self, piece: Piece, *, tokens: int) -> None:
        reason = piece.finish_reason
        if reason is not None and reason != ABORTED and reason not in FINISHED:
            raise InvalidAnswer(f"finish_reason {reason!r}")
        if reason in FINISHED and not tokens and piece.message is None:
            raise InvalidAnswer("it has no tokens")

    def _check_experts(self, piece: Piece, fresh: int) -> ExpertRows | None:
        """Returns the piece's routed experts, or None if the request does not want them (some
        engines send them anyway). Raises `InvalidAnswer` for a wrong number. The last token has no
        experts yet because the model has not processed it."""
        if piece.experts is None or self._experts_from is None or piece.finish_reason == ABORTED:
            return None
        return fitted(piece.experts, len(self._prompt) + fresh - 1 - self._experts_from)

    @property
    def lacks_experts(self) -> bool:
        """Returns whether a finished answer has no routed experts."""
        return self._experts is None and self.finish_reason in FINISHED

    @property
    def experts(self) -> ExpertRows | None:
        """Returns the routed experts, without the experts of tokens that were cut off."""
        if self._experts is None or self._experts_from is None:
            return None
        return self._experts.first(self._prompt_length + len(self.ids) - 1 - self._experts_from)

    def _attribute_versions(self, versions: tuple[VersionSpan, ...]) -> None:
        """Replaces the assumed versions of this try with the versions that the engine reports."""
        self._keep_spans(self._start)
        for span in versions:
            self._attribute(span.version, span.source, self._start + span.end)

    def _keep_spans(self, length: int) -> None:
        self.spans = _cut_spans(self.spans, length)

    def _cover(self) -> None:
        """Gives the assumed version to the tokens for which the engine has sent no version."""
        if len(self.ids) > (self.spans[-1].end if self.spans else 0):
            self._attribute(self._assumed.version, self._assumed.source, len(self.ids))

    def _attribute(self, version: str, source: VersionSource, end: int) -> None:
        """Adds a span after the last one, or extends the last span if its version is the same."""
        start = self.spans[-1].end if self.spans else 0
        if self.spans and (self.spans[-1].version, self.spans[-1].source) == (version, source):
            start = self.spans.pop().start
        self.spans.append(VersionSpan(version, start, end, source))

    def assume(self, version: str | None) -> None:
        """Sets the version that the following tokens are assumed to have. None means that the
        version is unknown."""
        self._cover()
        source = VersionSource.UNKNOWN if version is None else VersionSource.ASSUMED
        self._assumed = VersionSpan(version or "", 0, 0, source)

    def interrupt(self) -> None:
        """Ends an interrupted try. Drops the try's last token unless the engine aborted the try.
        The completion may have ended at that token. In that case, the next try samples it again and
        finds the end."""
        if self.fresh and self.finish_reason != ABORTED:
            self.cut(len(self.ids) - 1)
        self.finish_reason = None

    def discard_try(self) -> Draft | None:
        """Drops all tokens of the present try. If some of them are durable already, returns an
        empty draft at the first of them. Saving this draft makes the durable tokens void."""
        self.cut(self._start)
        self._stated = None
        self.finish_reason = None
        if self.saved <= self._start:
            return None
        self.saved = self._start
        return Draft(self._start, versions=tuple(self.spans), logprobs_mode=self.logprobs_mode)

    def restart(self) -> None:
        """Drops all tokens. The reply will be sampled from its beginning."""
        self._close_try()
        self.cut(0)
        self._start = 0
        self.finish_reason = None

    def cut(self, length: int) -> None:
        self._cover()
        del self.ids[length:]
        del self.logprobs[length:]
        self._keep_spans(length)

    def take_unsaved(self, *, hold: int) -> Draft | None:
        """Returns a draft of the tokens that are not durable yet, except the last `hold` tokens,
        and counts them as saved. Returns None if there are no such tokens."""
        end = len(self.ids) - hold
        if end <= self.saved:
            return None
        self._cover()
        start, self.saved = self.saved, end
        return Draft(
            start,
            pack_ids(self.ids[start:end]),
            pack_logprobs(self.logprobs[start:end]),
            tuple(_cut_spans(self.spans, end)),
            self.logprobs_mode,
        )

    @property
    def usage(self) -> Usage | None:
        """Returns the token counts of all tries that sent something, without discarded tries. If
        the engine reports no counts for a try, counts the try's tokens. Returns None if the engine
        sends a message without counts."""
        found = self._used + self._try_usage
        return None if found == NOTHING else found

    @property
    def _try_usage(self) -> Usage:
        if self._stated is not None:
            return self._stated
        return Usage(len(self._prompt), self.fresh) if self.fresh else NOTHING

    def _close_try(self) -> None:
        if self._stated is not None or self.fresh:
            self._used, self._stated = self._used + self._try_usage, None

    def completion(
        self, *, model: str, tries: int, seconds: float, dialect: str = ""
    ) -> Completion:
        assert self.finish_reason is not None, "a completion ends for a reason"
        self._cover()
        return Completion(
            ids=pack_ids(self.ids),
            logprobs=pack_logprobs(self.logprobs),
            finish_reason=self.finish_reason,
            versions=tuple(self.spans),
            model=model,
            tries=tries,
            seconds=seconds,
            seams=tuple(seam for seam in self.seams if seam < len(self.ids)),
            message=self.message,
            logprobs_mode=self.logprobs_mode,
            usage=self.usage,
            experts=self.experts,
            reasoning_tags=self.reasoning_tags,
            dialect=dialect,
        )


class StopStringSearch:
    """Looks for stop strings that begin before a seam and end after it.

    A seam is a place where a completion continued after an interruption. An engine looks for stop
    strings only in the tokens that it samples in one request, so it misses stop strings across a
    seam.
    """

    def __init__(self, request: Request, seam: int, reach: int, sampled: CompletionBuilder):
        assert request.decode is not None, "text is needed to find text"
        self._decode = request.decode
        self._stops = request.sampling.stop
        self._reach = reach
        self._seen = seam
        # A character takes at most four tokens, if each token is a byte.
        self._start = max(0, seam - 4 * reach)
        # A character that the seam splits counts as text before it, although its last bytes follow.
        self._text = self._decode(sampled.ids[self._start : seam])
        self._before = len(self._text)
        self._is_watching = True

    @classmethod
    def at_seam(cls, request: Request, sampled: CompletionBuilder) -> "StopStringSearch | None":
        """Returns a search for a seam at the end of the present tokens, or None if no stop string
        can lie across the seam."""
        stops = request.sampling.stop
        if not stops or not sampled.ids or request.decode is None:
            return None
        return cls(request, len(sampled.ids), max(map(len, stops)), sampled)

    def found(self, sampled: CompletionBuilder) -> bool:
        """Returns whether a stop string lies across the seam. If so, cuts the completion after the
        token that completes the stop string, as an engine does."""
        while self._is_watching and self._seen < len(sampled.ids):
            self._seen += 1
            # An incomplete character at the end may still change.
            settled = len(self._text.rstrip("\ufffd"))
            self._text = self._decode(sampled.ids[self._start : self._seen])
            if any(self._ends(stop, after=settled) for stop in self._stops):
                sampled.cut(self._seen)
                sampled.finish_reason = "stop"
                return True
            # A stop string that crosses the seam ends within its own length after the seam.
            self._is_watching = len(self._text) - self._before < self._reach
        return False

    def _ends(self, stop: str, *, after: int) -> bool:
        """Returns whether `stop` begins before the seam and ends in the text that was just
        added."""
        return -1 < self._text.find(stop, max(0, after - len(stop) + 1)) < self._before


class TokenEvents:
    """A series of events that contain only tokens. Checking them together is much faster than one
    by one."""

    __slots__ = ("_each", "_ids", "_logprobs", "_model")

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._model: str | None = None
        self._each: list[tuple[Piece, bytes]] = []

    def takes(self, piece: Piece, data: bytes) -> bool:
        """Adds a piece that has only tokens, and returns True. Returns False for any other piece,
        which the caller then checks alone."""
        if not piece.is_only_tokens or (self._ids and piece.model != self._model):
            return False
        self._model = piece.model
        self._ids += piece.ids  # type: ignore[arg-type]
        self._logprobs += piece.logprobs  # type: ignore[arg-type]
        self._each.append((piece, data))
        return True

    def give_to(self, sampled: CompletionBuilder, model: str) -> None:
        if self._ids:
            piece = Piece(ids=self._ids, logprobs=self._logprobs, model=self._model)
            each, self._ids, self._logprobs, self._each = self._each, [], [], []
            try:
                sampled.take(piece, model=model)
            except InvalidAnswer:
                _blame(each, sampled, model)
                raise


def _blame(each: list[tuple[Piece, bytes]], sampled: CompletionBuilder, model: str) -> None:
    """Raises the error of the first invalid piece, with the piece's data as evidence."""
    for piece, data in each:
        try:
            sampled.take(piece, model=model)
        except InvalidAnswer as error:
            error.evidence = data
            raise


def _cut_spans(spans: list[VersionSpan], length: int) -> list[VersionSpan]:
    return [
        VersionSpan(span.version, span.start, min(span.end, length), span.source)
        for span in spans
        if span.start < length
    ]


def _check_spans(versions: tuple[VersionSpan, ...], tokens: int) -> None:
    end = 0
    for span in versions:
        if span.start != end or span.end <= span.start:
            raise InvalidAnswer("its version spans do not follow each other")
        end = span.end
    if end != tokens:
        raise InvalidAnswer(f"its version spans cover {end} of {tokens} tokens")


def pack(ids: object) -> "array[int]":
    try:
        return array(TYPE_IDS, ids)  # type: ignore[call-overload,no-any-return]
    except OverflowError as error:
        raise InvalidAnswer("a token id does not fit 32 bits") from error


def check_logprobs(values: object, tokens: int) -> "array[float]":
    if values is None:
        raise InvalidAnswer("it has no logprobs")
    logprobs: array[float] = array(TYPE_LOGPROBS, values)  # type: ignore[call-overload]
    if len(logprobs) != tokens:
        raise InvalidAnswer(f"{len(logprobs)} logprobs for {tokens} tokens")
    if not math.isfinite(sum(logprobs)):
        raise InvalidAnswer("a logprob is not finite")
    if max(logprobs) > MAX_LOGPROB:
        raise InvalidAnswer(f"a logprob is positive ({max(logprobs)})")
    return logprobs
