"""Errors in OpenAI's format: `{"error": {"message", "type", "param", "code"}}`.

OpenAI's client libraries raise them as their own exceptions. Decoding a body either returns a value
or raises `RequestRejected`.
"""

import re
from typing import TypeVar

import msgspec

from holdfast.gateway.protocol.messages import RequestRejected, shorten

T = TypeVar("T")

_MAX_CHARS = 200
"""The most characters of a name or value from outside that an error quotes."""


def format_error(rejection: RequestRejected) -> bytes:
    """Returns the body of an error."""
    error = {
        "message": rejection.message,
        "type": rejection.kind or _kind(rejection.status),
        "param": rejection.param,
        "code": rejection.code or None,
    }
    return msgspec.json.encode({"error": error})


def _kind(status: int) -> str:
    if status == 429:
        return "rate_limit_error"
    return "server_error" if status >= 500 else "invalid_request_error"


def invalid(
    message: str, *, param: str | None = None, code: str = "invalid_value"
) -> RequestRejected:
    """Returns the rejection of a wrong value."""
    return RequestRejected(
        400, message, param=None if param is None else _shorten(param), code=code
    )


def unknown(name: str) -> RequestRejected:
    name = _shorten(name)
    refusal = invalid(f"Unknown parameter: '{name}'.", param=name, code="unknown_parameter")
    refusal.is_unknown = refusal.is_unsupported = True
    return refusal


def unsupported(name: str, why: str) -> RequestRejected:
    """Returns the rejection of a known parameter that cannot be followed here, whatever its
    value."""
    text = f"Unsupported parameter: '{name}' is not supported here: {why}"
    return _unsupported(text, name, "unsupported_parameter")


def unsupported_value(name: str, value: object, why: str) -> RequestRejected:
    """Returns the rejection of a parameter's value that cannot be followed, although other values
    can."""
    text = f"Unsupported value: '{name}' does not support {format_value(value)} here: {why}"
    return _unsupported(text, name, "unsupported_value")


def _unsupported(text: str, name: str, code: str) -> RequestRejected:
    refusal = invalid(text, param=name, code=code)
    refusal.is_unsupported = True
    return refusal


def format_value(value: object) -> str:
    """Returns a decoded value as JSON, shortened if it is long."""
    try:
        return _shorten(msgspec.json.encode(value).decode())
    except (RecursionError, OverflowError):
        # the body was decoded near the recursion limit, and here the limit is exceeded
        return "this value"


def decode(decoder: "msgspec.json.Decoder[T]", body: bytes) -> T:
    """Returns the body as the decoder's type. Raises `RequestRejected`."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise from_validation_error(str(error)) from error
    except RecursionError as error:
        raise invalid("The body is nested too deeply.", code="invalid_json") from error
    except ValueError as error:
        text = f"We could not parse the JSON body of your request: {_shorten(str(error))}"
        raise invalid(text, code="invalid_json") from error


def convert(value: object, to: type[T], *, root: str) -> T:
    """Returns a decoded value as a type. `root` is the parameter that has the value. Raises
    `RequestRejected`."""
    try:
        return msgspec.convert(value, to)
    except msgspec.ValidationError as error:
        raise from_validation_error(str(error), root=root) from error


_WHERE = re.compile(r"(?P<text>.*?)(?: - at `\$\.?(?P<path>.*)`)?", re.DOTALL)
_FIELD = re.compile(
    r"Object (?P<what>contains unknown|missing required) field `(?P<name>.*)`", re.DOTALL
)


def from_validation_error(complaint: str, *, root: str = "") -> RequestRejected:
    """Returns an error of msgspec as a rejection that names the parameter."""
    match = _WHERE.fullmatch(complaint)
    assert match is not None
    text, path = match["text"], root + (match["path"] or "")
    if field := _FIELD.fullmatch(text):
        name = f"{path}.{field['name']}" if path else field["name"]
        if field["what"] == "contains unknown":
            return unknown(name)
        name = _shorten(name)
        text = f"Missing required parameter: '{name}'."
        return invalid(text, param=name, code="missing_required_parameter")
    code = "invalid_type" if ", got `" in text else "invalid_value"
    where = f"'{_shorten(path)}'" if path else "the body"
    return invalid(f"Invalid {where}: {_shorten(text)}.", param=path or None, code=code)


def _shorten(text: str) -> str:
    return shorten(text, _MAX_CHARS)
