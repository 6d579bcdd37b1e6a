"""Common to the dialects with answers that are a list of choices and a usage."""

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

import msgspec

from holdfast.policy.dialects.dialect import Piece, Reader, Unusable
from holdfast.policy.dialects.reading import UsageBody, counted, decoded, ended


class ChoicesBody(Protocol):
    @property
    def choices(self) -> Sequence[object]: ...

    @property
    def usage(self) -> UsageBody | None: ...


Kind = TypeVar("Kind", bound=ChoicesBody)


class Choices(Generic[Kind]):
    """Reads whole answers and events alike; `read` knows the names of the fields."""

    def __init__(self, decoder: "msgspec.json.Decoder[Kind]", read: Callable[[Kind], Piece]):
        self._decoder = decoder
        self._read = read

    def whole(self, body: bytes) -> Piece:
        piece = self._read(decoded(self._decoder, body))
        if piece.ids is None:
            raise Unusable("it has no token_ids (return_token_ids was asked for)")
        return ended(piece)

    def event(self, data: bytes) -> Piece:
        answer = decoded(self._decoder, data)
        if not answer.choices:  # The last event of a stream holds the usage and nothing else.
            return counted(Piece(), answer.usage)
        return self._read(answer)

    def reader(self) -> Reader:
        return self.event
