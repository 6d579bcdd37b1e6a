"""The answers of `/v1/chat/completions`, in vLLM's shape, with `weight_versions` in each choice."""

from collections.abc import Sequence
from typing import Any

from holdfast.embedded.http.parse_tool_calls import Calls
from holdfast.embedded.http.request_state import (
    FINGERPRINT,
    RequestState,
    candidates,
    listed,
    shown,
    spans,
)
from holdfast.embedded.scheduler.generation import Drawn, Finish, TokenDelta

_CHUNK = "chat.completion.chunk"


class ChatShape:
    """`/v1/chat/completions`."""

    def __init__(self, job: RequestState):
        self._job = job
        self._calls = [Calls() for _ in range(job.choices)]

    def whole(self) -> dict[str, Any]:
        job = self._job
        return {
            **job.head("chat.completion"),
            "choices": [self._choice(i) for i in range(job.choices)],
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": job.usage(),
            "prompt_logprobs": None,
            "prompt_token_ids": job.prompt(0) if job.asked.return_ids else None,
            "prompt_text": None,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }

    def _choice(self, index: int) -> dict[str, Any]:
        one = self._job.generations[index]
        text = one.text.whole if one.text else ""
        said, calls = self._divided(index, text, ended=True)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": said or (None if calls else ""),
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "reasoning": None,
        }
        if calls:
            message["tool_calls"] = calls
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(one.drawn),
            "finish_reason": self._reason(index, one.finish_reason),
            "stop_reason": one.stop_reason,
            "token_ids": one.tokens if self._job.asked.return_ids else None,
            "routed_experts": None,
            "weight_versions": spans(one),
        }

    def opening(self) -> list[dict[str, Any]]:
        job, chunks = self._job, []
        for choice in range(job.choices):
            said = {
                "index": choice,
                "delta": {"role": "assistant", "content": ""},
                "logprobs": None,
                "finish_reason": None,
            }
            chunk: dict[str, Any] = {**job.head(_CHUNK), "choices": [said]}
            if job.asked.return_ids:
                chunk |= {"prompt_token_ids": job.prompt(0), "prompt_text": None}
            chunks.append(chunk)
        return chunks

    def chunks(self, choice: int, delta: TokenDelta) -> list[dict[str, Any]]:
        job, one = self._job, self._job.generations[choice]
        said, calls = self._divided(choice, delta.text, ended=delta.finish_reason is not None)
        made = len(self._calls[choice].made)
        content: dict[str, Any] = {"content": said} if said else {}
        if calls:
            numbered = enumerate(calls, start=made - len(calls))
            content["tool_calls"] = [{"index": i, **call} for i, call in numbered]
        found: dict[str, Any] = {
            "index": choice,
            "delta": content,
            "logprobs": self._logprobs(delta.drawn),
            "finish_reason": self._reason(choice, delta.finish_reason),
        }
        if delta.finish_reason:
            found |= {"stop_reason": one.stop_reason, "weight_versions": spans(one)}
        if job.asked.return_ids:
            found["token_ids"] = listed(delta.drawn)
        return [{**job.head(_CHUNK), "choices": [found]}]

    def closing(self) -> dict[str, Any]:
        job = self._job
        usage = job.usage(details=False)
        head = job.head(_CHUNK)
        return {**head, "choices": [], "usage": usage, "system_fingerprint": FINGERPRINT}

    def _divided(self, choice: int, text: str, *, ended: bool) -> tuple[str, list[dict[str, Any]]]:
        """What is said, and the tool calls, when there are tools to call."""
        if not self._job.asked.tools:
            return text, []
        said, calls = self._calls[choice].push(text)
        if ended:
            rest, more = self._calls[choice].close()
            said, calls = said + rest, calls + more
        return said, calls

    def _reason(self, choice: int, finish: Finish | None) -> str | None:
        called = finish is Finish.STOP and self._calls[choice].made
        return "tool_calls" if called else finish

    def _logprobs(self, drawn: Sequence[Drawn]) -> dict[str, Any] | None:
        count = self._job.asked.sampling.logprobs
        if count is None:
            return None
        return {
            "content": [
                {
                    **self._token(one.token, shown(one.logprob)),
                    "top_logprobs": [
                        self._token(token, value) for token, value, _ in candidates(one, count)
                    ],
                }
                for one in drawn
            ]
        }

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        piece = self._job.piece(token)
        return {"token": piece, "logprob": logprob, "bytes": list(piece.encode())}
