"""Replies that are parsed while they come."""

from holdfast.records.encoding.tokens import pack_ids
from holdfast.records.message import Message
from holdfast.records.sampling import Sampling
from holdfast.records.step import Generated
from holdfast.rollout.replay.prompt import Prompt


def taken(prompt: Prompt, ids: list[int], message: Message, turn: int) -> Generated:
    return Generated(
        path=str(turn),
        fingerprint=prompt.fingerprint,
        base=prompt.base,
        keep=prompt.keep,
        delta=prompt.delta.tobytes(),
        ids=pack_ids(ids),
        logprobs=b"",
        engine_finish_reason="stop",
        versions=(),
        message=message,
        added=(),
        model="",
        sampling=Sampling(),
    )
