"""The answers of `/v1/completions` and `/inference/v1/generate`, in vLLM's shape.

One extension: `weight_versions` in each choice, which vLLM has in the latter only.
"""

from collections.abc import Sequence
from typing import Any

from holdfast.embedded.http.request_state import (
    FINGERPRINT,
    RequestState,
    candidates,
    listed,
    shown,
    spans,
)
from holdfast.embedded.scheduler.generation import Drawn, Finish, TokenDelta


class CompletionsShape:
    """`/v1/completions`."""

    def __init__(self, job: RequestState):
        self._job = job
        self._offsets = [0] * job.choices
        self._begun: set[int] = set()

    def whole(self) -> dict[str, Any]:
        job = self._job
        return {
            **job.head("text_completion"),
            "choices": [self._choice(i) for i in range(job.choices)],
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": job.usage(),
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }

    def _choice(self, index: int) -> dict[str, Any]:
        one, ids = self._job.generations[index], self._job.asked.return_ids
        return {
            "index": index,
            "text": one.text.whole if one.text else "",
            "logprobs": self._logprobs(index, one.drawn),
            "finish_reason": one.finish_reason,
            "stop_reason": one.stop_reason,
            "token_ids": one.tokens if ids else None,
            "prompt_logprobs": None,
            "prompt_token_ids": self._job.prompt(index) if ids else None,
            "routed_experts": None,
            "weight_versions": spans(one),
        }

    def opening(self) -> list[dict[str, Any]]:
        return []

    def chunks(self, choice: int, delta: TokenDelta) -> list[dict[str, Any]]:
        job, one = self._job, self._job.generations[choice]
        ids = job.asked.return_ids
        first = ids and choice not in self._begun
        self._begun.add(choice)
        said: dict[str, Any] = {
            "index": choice,
            "text": delta.text,
            "logprobs": self._logprobs(choice, delta.drawn),
            "finish_reason": delta.finish_reason,
            "stop_reason": one.stop_reason if delta.finish_reason else None,
            "prompt_token_ids": job.prompt(choice) if first else None,
            "token_ids": listed(delta.drawn) if ids else None,
            "weight_versions": spans(delta),
        }
        return [{**job.head("text_completion"), "choices": [said]}]

    def closing(self) -> dict[str, Any]:
        job = self._job
        head = job.head("text_completion")
        usage = job.usage(details=False)
        return {**head, "choices": [], "usage": usage, "system_fingerprint": FINGERPRINT}

    def _logprobs(self, choice: int, drawn: Sequence[Drawn]) -> dict[str, Any] | None:
        count = self._job.asked.sampling.logprobs
        if count is None:
            return None
        tokens = [self._job.piece(one.token) for one in drawn]
        offsets = []
        for token in tokens:
            offsets.append(self._offsets[choice])
            self._offsets[choice] += len(token)
        return {
            "text_offset": offsets,
            "token_logprobs": [shown(one.logprob) for one in drawn],
            "tokens": tokens,
            "top_logprobs": [self._top(one, count + 1) for one in drawn],
        }

    def _top(self, drawn: Drawn, count: int) -> dict[str, float]:
        """By text; where two tokens have the same, the sampled or likelier one is kept."""
        found: dict[str, float] = {}
        for token, value, _ in candidates(drawn, count):
            found.setdefault(self._job.piece(token), value)
        return found


class GenerateShape:
    """`/inference/v1/generate`."""

    def __init__(self, job: RequestState):
        self._job = job
        self._begun = False

    def whole(self) -> dict[str, Any]:
        job = self._job
        return {
            "request_id": job.id,
            "model": job.served,
            "created": job.created,
            "usage": job.usage(),
            "prompt_logprobs": None,
            "prompt_token_id_logprobs": None,
            "prompt_token_ids": job.prompt(0) if job.asked.return_ids else None,
            "mm_placeholders": None,
            "metrics": None,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "output_mode": "tokens",
            "choices": [
                self._choice(i, one.drawn, one.finish_reason, spans(one))
                for i, one in enumerate(job.generations)
            ],
        }

    def _choice(
        self,
        index: int,
        drawn: Sequence[Drawn],
        finish: Finish | None,
        told: list[dict[str, Any]],
    ) -> dict[str, Any]:
        one = self._job.generations[index]
        return {
            "index": index,
            "finish_reason": finish,
            "stop_reason": one.stop_reason if finish else None,
            "token_ids": listed(drawn),
            "routed_experts": None,
            "sampling_mask": None,
            "weight_versions": told,
            "logprobs": self._logprobs(drawn),
        }

    def opening(self) -> list[dict[str, Any]]:
        return []

    def chunks(self, choice: int, delta: TokenDelta) -> list[dict[str, Any]]:
        said: dict[str, Any] = {"request_id": self._job.id, "usage": None}
        if self._job.asked.return_ids and not self._begun:
            said["prompt_token_ids"] = self._job.prompt(choice)
        self._begun = True
        said["output_mode"] = "tokens"
        said["choices"] = [self._choice(choice, delta.drawn, delta.finish_reason, spans(delta))]
        return [said]

    def closing(self) -> dict[str, Any]:
        usage = self._job.usage(details=False)
        return {"request_id": self._job.id, "usage": usage, "output_mode": "tokens", "choices": []}

    def _logprobs(self, drawn: Sequence[Drawn]) -> dict[str, Any] | None:
        count = self._job.asked.sampling.logprobs
        if count is None:
            return None
        return {
            "content": [
                {
                    "token_id": one.token,
                    "logprob": shown(one.logprob),
                    "rank": one.rank,
                    "top_logprobs": [
                        {"token_id": token, "logprob": value, "rank": rank}
                        for token, value, rank in candidates(one, count)
                    ],
                }
                for one in drawn
            ]
        }
