"""Defines the fields that the requests of all wires share.

They are vLLM's parameters that providers lack (clients send them in `extra_body`), and the
addresses of images.
"""

from typing import Annotated, Any

from msgspec import Meta, Struct

from holdfast.gateway.protocol.messages import AlteringParameters, RequestRejected
from holdfast.records.errors import UsageError
from holdfast.records.sampling import MAX_LISTED, Sampling, bias_of, object_text

TokenId = Annotated[int, Meta(ge=0, lt=2**31)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]


class AlteringFields(Struct, kw_only=True, frozen=True):
    """The fields of a request body. Null is the same as no value."""

    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0)] | None = None
    logit_bias: dict[str, Any] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=MAX_LISTED)] | None = None
    ignore_eos: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def altering(self) -> AlteringParameters:
        return AlteringParameters(
            min_p=self.min_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            logit_bias=None if self.logit_bias is None else self._biases(),
            stop_token_ids=None if self.stop_token_ids is None else tuple(self.stop_token_ids),
            ignore_eos=self.ignore_eos,
        )

    def _biases(self) -> tuple[tuple[int, float], ...]:
        try:
            return bias_of(self.logit_bias)
        except UsageError as error:
            raise RequestRejected(
                400, f"Invalid 'logit_bias': {error}", param="logit_bias", code="invalid_value"
            ) from error

    @property
    def template_kwargs(self) -> str | None:
        """Returns the value for `GenerationRequest.chat_template_kwargs`."""
        if self.chat_template_kwargs is None:
            return None
        name = "chat_template_kwargs"
        try:
            text = object_text(name, self.chat_template_kwargs)
            return Sampling(chat_template_kwargs=text).chat_template_kwargs
        except UsageError as error:
            raise RequestRejected(400, str(error), param=name, code="invalid_value") from error


_SCHEMES = ("data:image/", "https://", "http://")
WRONG_URL = (
    "an image is 'data:image/…;base64,…' or an address that begins with 'https://' or 'http://'."
)
"""The error for an address of another form. It does not quote the address, because a signed address
contains a secret."""


def is_image_url(url: str) -> bool:
    """Returns whether an engine may fetch an image from this address. Paths of the engine's own
    files are not allowed."""
    return url.lower().startswith(_SCHEMES)
