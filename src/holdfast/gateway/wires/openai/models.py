"""The responses of `/v1/models`, for all models or one model."""

from collections.abc import Sequence

import msgspec

from holdfast.gateway.protocol.messages import RequestRejected, shorten


def format_models(names: Sequence[str], *, created: int) -> bytes:
    """Returns the body of `GET /v1/models`."""
    listed = [_model(name, created=created) for name in names]
    return msgspec.json.encode({"object": "list", "data": listed})


def format_model(name: str, names: Sequence[str], *, created: int) -> bytes:
    """Returns the body of `GET /v1/models/NAME`. Raises `RequestRejected` (404) for an unknown
    name."""
    if name not in names:
        text = f"The model '{shorten(name)}' does not exist. There are: {', '.join(names)}."
        raise RequestRejected(404, text, param="model", code="model_not_found")
    return msgspec.json.encode(_model(name, created=created))


def _model(name: str, *, created: int) -> dict[str, object]:
    return {"id": name, "object": "model", "created": created, "owned_by": "holdfast"}
