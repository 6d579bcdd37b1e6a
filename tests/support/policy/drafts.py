"""What is made durable of an unfinished completion, as a journal would keep it."""

from typing import Any

from holdfast.policy.policy import Draft, Partial, Request
from holdfast.records.encoding.tokens import pack_ids, pack_logprobs, unpack_ids, unpack_logprobs
from holdfast.records.step import VersionSpan
from support.policy.answers import logprobs_of, request

NOTHING = Draft()


class Kept:
    """Every draft that was saved. Each begins where the last one ended; only one without tokens
    begins before that, and takes back what is after its beginning."""

    def __init__(self, before: Draft = NOTHING) -> None:
        self.drafts: list[Draft] = []
        self.ids = unpack_ids(before.ids).tolist()
        self.logprobs = unpack_logprobs(before.logprobs).tolist()
        self.versions = before.versions

    async def save(self, draft: Draft) -> None:
        if draft.ids:
            assert draft.start == len(self.ids), "drafts are contiguous"
        assert draft.start <= len(self.ids)
        del self.ids[draft.start :], self.logprobs[draft.start :]
        self.ids += unpack_ids(draft.ids)
        self.logprobs += unpack_logprobs(draft.logprobs)
        self.versions = draft.versions
        assert len(self.ids) == len(self.logprobs)
        assert not self.ids or self.versions[-1].end == len(self.ids)
        self.drafts.append(draft)

    def sizes(self) -> list[int]:
        return [len(draft.ids) // 4 for draft in self.drafts]

    def request(self, name: str = "r", *, every: int = 1, **more: Any) -> Request:
        return request(name, partial=Partial(self.save, every), **more)


def draft_of(ids: list[int], *versions: VersionSpan) -> Draft:
    """What a run before this one left."""
    spans = versions or (VersionSpan("old", 0, len(ids)),)
    return Draft(0, pack_ids(ids), pack_logprobs(logprobs_of(ids)), spans)
