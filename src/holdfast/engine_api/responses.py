"""Response bodies of vLLM's sampling endpoints, with the recorded keys in the recorded order.

An engine describes its samples in `ChoiceOutput`s. A shape, which is made for one request, turns
them into JSON values. Shapes have no state between two calls, and never sample or encode.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from msgspec import UNSET, Struct, UnsetType

JsonObject = dict[str, Any]


class TokenScore(Struct, frozen=True):
    """A token with its log-probability. `top` are the candidates that are listed beside it."""

    token: int
    text: str
    logprob: float
    rank: int | None = 1
    top: "tuple[TokenScore, ...]" = ()


class ChoiceOutput(Struct, kw_only=True):
    """Tokens of one choice: all of them, or the tokens of one chunk."""

    index: int = 0
    text: str = ""
    """The text. In a chat, it excludes the tool calls."""
    tool_calls: Sequence[JsonObject] = ()
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    scores: Sequence[TokenScore] | None = None
    """The scores of the tokens, or None if the request asked for no logprobs."""
    text_offset: int = 0
    """The number of the choice's characters before these tokens."""
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    """The prompt's ids if the request asked for them. In a stream, they come with a choice's first
    tokens."""
    routed_experts: str | None = None
    """The routed experts, with a choice's last tokens, if the engine gives them."""
    weight_versions: Sequence[object] | UnsetType | None = UNSET
    """The spans of the choice so far. Unset if the engine has them only in
    `/inference/v1/generate`."""

    def with_versions(self, choice: JsonObject) -> JsonObject:
        if self.weight_versions is not UNSET:
            choice["weight_versions"] = self.weight_versions
        return choice


class ResponseShape(Struct, frozen=True, kw_only=True):
    """The responses to one request."""

    prefix: ClassVar[str]
    """The prefix of the ids of the responses."""
    more_candidates: ClassVar[int] = 0
    """How many candidates the response lists beyond the requested number."""

    request_id: str
    model: str
    created: int
    fingerprint: str
    usage_chunk: bool = False
    """Whether a stream ends with the usage. If not, the event of its last tokens has the
    fingerprint."""

    @property
    def id(self) -> str:
        return f"{self.prefix}-{self.request_id}"

    def whole(self, choices: Sequence[ChoiceOutput], usage: JsonObject) -> JsonObject:
        """Returns the response to a request without a stream."""
        raise NotImplementedError

    def opening(self, index: int, prompt_token_ids: list[int] | None) -> list[JsonObject]:
        """Returns the events of a choice before its first token."""
        return []

    def chunk(self, output: ChoiceOutput) -> JsonObject:
        """Returns the event of some tokens."""
        raise NotImplementedError

    def closing(self, usage: JsonObject) -> list[JsonObject]:
        """Returns the events after the last token."""
        raise NotImplementedError

    def _head(self, kind: str, *choices: JsonObject) -> JsonObject:
        head = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        return {**head, "choices": list(choices)}

    def _last(self, kind: str, usage: JsonObject) -> list[JsonObject]:
        if not self.usage_chunk:
            return []
        return [{**self._head(kind), "usage": usage, "system_fingerprint": self.fingerprint}]

    def _add_fingerprint(self, chunk: JsonObject, output: ChoiceOutput) -> JsonObject:
        if output.finish_reason is not None and not self.usage_chunk:
            chunk["system_fingerprint"] = self.fingerprint
        return chunk


class CompletionsShape(ResponseShape, frozen=True, kw_only=True):
    """`/v1/completions`."""

    prefix = "cmpl"
    more_candidates = 1
    kind: ClassVar[str] = "text_completion"

    def whole(self, choices: Sequence[ChoiceOutput], usage: JsonObject) -> JsonObject:
        return {
            **self._head(self.kind, *map(self._whole_choice, choices)),
            "service_tier": None,
            "system_fingerprint": self.fingerprint,
            "usage": _with_details(usage),
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }

    def chunk(self, output: ChoiceOutput) -> JsonObject:
        ids = {"prompt_token_ids": output.prompt_token_ids, "token_ids": output.token_ids}
        choice = output.with_versions({**self._choice(output), **ids})
        return self._add_fingerprint(self._head(self.kind, choice), output)

    def closing(self, usage: JsonObject) -> list[JsonObject]:
        return self._last(self.kind, usage)

    def _whole_choice(self, output: ChoiceOutput) -> JsonObject:
        return output.with_versions(
            {
                **self._choice(output),
                "token_ids": output.token_ids,
                "prompt_logprobs": None,
                "prompt_token_ids": output.prompt_token_ids,
                "routed_experts": output.routed_experts,
            }
        )

    def _choice(self, output: ChoiceOutput) -> JsonObject:
        scores = output.scores
        return {
            "index": output.index,
            "text": output.text,
            "logprobs": None if scores is None else text_logprobs(scores, output.text_offset),
            "finish_reason": output.finish_reason,
            "stop_reason": output.stop_reason,
        }


class ChatShape(ResponseShape, frozen=True, kw_only=True):
    """`/v1/chat/completions`."""

    prefix = "chatcmpl"
    kind: ClassVar[str] = "chat.completion.chunk"

    def whole(self, choices: Sequence[ChoiceOutput], usage: JsonObject) -> JsonObject:
        return {
            **self._head("chat.completion", *map(self._whole_choice, choices)),
            "service_tier": None,
            "system_fingerprint": self.fingerprint,
            "usage": _with_details(usage),
            "prompt_logprobs": None,
            "prompt_token_ids": choices[0].prompt_token_ids,
            "prompt_text": None,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }

    def opening(self, index: int, prompt_token_ids: list[int] | None) -> list[JsonObject]:
        delta = {"role": "assistant", "content": ""}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        prompt = {"prompt_token_ids": prompt_token_ids, "prompt_text": None}
        return [{**self._head(self.kind, choice), **prompt}]

    def chunk(self, output: ChoiceOutput) -> JsonObject:
        delta: JsonObject = {"content": output.text} if output.text else {}
        if output.tool_calls:
            delta = {"content": output.text or None, "tool_calls": output.tool_calls}
        choice = self._choice(output, delta=delta)
        if output.finish_reason is not None:
            choice = output.with_versions({**choice, "stop_reason": output.stop_reason})
        choice["token_ids"] = output.token_ids
        return self._add_fingerprint(self._head(self.kind, choice), output)

    def closing(self, usage: JsonObject) -> list[JsonObject]:
        return self._last(self.kind, usage)

    def _whole_choice(self, output: ChoiceOutput) -> JsonObject:
        message: JsonObject = {
            "role": "assistant",
            "content": output.text or (None if output.tool_calls else ""),
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
        }
        if output.tool_calls:
            message["tool_calls"] = output.tool_calls
        return output.with_versions(
            {
                **self._choice(output, message={**message, "reasoning": None}),
                "stop_reason": output.stop_reason,
                "token_ids": output.token_ids,
                "routed_experts": None,
            }
        )

    def _choice(self, output: ChoiceOutput, **content: JsonObject) -> JsonObject:
        scores = output.scores
        return {
            "index": output.index,
            **content,
            "logprobs": None if scores is None else {"content": [*map(_chat_score, scores)]},
            "finish_reason": output.finish_reason,
        }


class GenerateShape(ResponseShape, frozen=True, kw_only=True):
    """`/inference/v1/generate`."""

    prefix = "generate-tokens"

    def whole(self, choices: Sequence[ChoiceOutput], usage: JsonObject) -> JsonObject:
        return {
            "request_id": self.id,
            "model": self.model,
            "created": self.created,
            "usage": _with_details(usage),
            "prompt_logprobs": None,
            "prompt_token_id_logprobs": None,
            "prompt_token_ids": choices[0].prompt_token_ids,
            "mm_placeholders": None,
            "metrics": None,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            **self._choices(*choices),
        }

    def chunk(self, output: ChoiceOutput) -> JsonObject:
        chunk: JsonObject = {"request_id": self.id, "usage": None}
        if output.prompt_token_ids is not None:
            chunk["prompt_token_ids"] = output.prompt_token_ids
        return {**chunk, **self._choices(output)}

    def closing(self, usage: JsonObject) -> list[JsonObject]:
        return [{"request_id": self.id, "usage": usage, **self._choices()}] * self.usage_chunk

    def _choices(self, *choices: ChoiceOutput) -> JsonObject:
        return {"output_mode": "tokens", "choices": [*map(self._choice, choices)]}

    def _choice(self, output: ChoiceOutput) -> JsonObject:
        scores, versions = output.scores, output.weight_versions
        return {
            "index": output.index,
            "finish_reason": output.finish_reason,
            "stop_reason": output.stop_reason,
            "token_ids": output.token_ids,
            "routed_experts": output.routed_experts,
            "sampling_mask": None,
            "weight_versions": None if versions is UNSET else versions,
            "logprobs": None if scores is None else {"content": [*map(_id_score, scores)]},
        }


def usage(prompt_tokens: int, completion_tokens: int) -> JsonObject:
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }


def _with_details(usage: JsonObject) -> JsonObject:
    details = ("prompt_tokens_details", "completion_tokens_details")
    return {**usage, **{name: usage.get(name) for name in details}}


def text_logprobs(scores: Sequence[TokenScore], offset: int) -> JsonObject:
    """Returns tokens by their text, as `/v1/completions` does. If two candidates have the same
    text, the sampled or likelier one is kept."""
    offsets, top = [], []
    for score in scores:
        offsets.append(offset)
        offset += len(score.text)
        top.append(_by_text(score))
    return {
        "text_offset": offsets,
        "token_logprobs": [score.logprob for score in scores],
        "tokens": [score.text for score in scores],
        "top_logprobs": top,
    }


def _by_text(score: TokenScore) -> dict[str, float]:
    logprobs: dict[str, float] = {}
    for candidate in (score, *score.top):
        logprobs.setdefault(candidate.text, candidate.logprob)
    return logprobs


def _chat_score(score: TokenScore) -> JsonObject:
    return {**_chat_token(score), "top_logprobs": [*map(_chat_token, score.top)]}


def _chat_token(score: TokenScore) -> JsonObject:
    return {"token": score.text, "logprob": score.logprob, "bytes": [*score.text.encode()]}


def _id_score(score: TokenScore) -> JsonObject:
    return {**_id_token(score), "top_logprobs": [*map(_id_token, score.top)]}


def _id_token(score: TokenScore) -> JsonObject:
    return {"token_id": score.token, "logprob": score.logprob, "rank": score.rank}


def model_list(
    model: str, *, created: int, owner: str, root: str, max_model_len: int, **extensions: object
) -> JsonObject:
    """Returns the response of `/v1/models` for an engine that serves one model. `extensions` are
    fields that vLLM lacks."""
    permission = {
        "id": f"modelperm-{model}",
        "object": "model_permission",
        "created": created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    card = {
        "id": model,
        "object": "model",
        "created": created,
        "owned_by": owner,
        "root": root,
        "parent": None,
        "max_model_len": max_model_len,
        "permission": [permission],
        **extensions,
    }
    return {"object": "list", "data": [card]}
