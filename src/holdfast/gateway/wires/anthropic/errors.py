"""Errors in Anthropic's format, with a type for each status, and the path of the fault
(`messages.0.content.1.text`). A message is shortened, since it may quote the request."""

import re

import msgspec

from holdfast.gateway.protocol.messages import RequestRejected, shorten

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_KNOWN = frozenset(_TYPES.values()) | {"api_error"}
_TOO_LONG = "prompt is too long"
"""The beginning of the message for a prompt that is too long. Agents compact their history when
they read this."""
_MAX_CHARS = 600
_COMPLAINT = re.compile(r"(?P<what>.*?)(?: - at `(?P<path>\$.*)`)?", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_TAG = re.compile(r"Invalid value (.*)", re.DOTALL)


def format_error(rejection: RequestRejected) -> bytes:
    """Returns the body of an error. Its type is `kind` if Anthropic has this type. Otherwise, the
    type follows from the status."""
    error: dict[str, object] = {"type": _type(rejection), "message": _message(rejection)}
    if rejection.code:
        error["details"] = {"error_code": rejection.code}
    return msgspec.json.encode({"type": "error", "error": error})


def invalid(where: str, what: str) -> RequestRejected:
    """Returns the rejection of a request that is wrong at `where`."""
    text = f"{where}: {what}" if where else what
    return RequestRejected(400, _shorten(text), param=_shorten(where) or None)


def unsupported(where: str, what: str = "") -> RequestRejected:
    """Returns the rejection of a request that needs something that this gateway cannot do."""
    refusal = invalid(where, f"not supported here{f'; {what}' if what else ''}")
    refusal.is_unsupported = True
    return refusal


def unknown(where: str) -> RequestRejected:
    """Returns the rejection of a request with an unknown field."""
    refusal = invalid(where, "Extra inputs are not permitted")
    refusal.is_unknown = refusal.is_unsupported = True
    return refusal


def from_decode_error(error: Exception, *, under: str = "") -> RequestRejected:
    """Returns a decoder's error as a rejection, with its path in the request."""
    complaint = _COMPLAINT.fullmatch(str(error))
    assert complaint is not None, "the pattern matches any text"
    what, path = complaint["what"], _dotted(complaint["path"] or "$", under)
    if missing := _MISSING.fullmatch(what):
        return invalid(_join(path, missing[1]), "Field required")
    if match := _UNKNOWN.fullmatch(what):
        return unknown(_join(path, match[1]))
    if (tag := _TAG.fullmatch(what)) and path.endswith(("type", "role")):
        return unsupported(path, f"it is {tag[1]}")
    if isinstance(error, msgspec.ValidationError):
        return invalid(path, what)
    return invalid("", f"The request body is not valid JSON: {what}")


def _type(rejection: RequestRejected) -> str:
    if rejection.kind in _KNOWN:
        return rejection.kind
    usual = "api_error" if rejection.status >= 500 else "invalid_request_error"
    return _TYPES.get(rejection.status, usual)


def _message(rejection: RequestRejected) -> str:
    message = rejection.message
    if rejection.param and rejection.param not in message:
        message = f"{rejection.param}: {message}"
    if rejection.code == "context_length_exceeded" and _TOO_LONG not in message:
        message = f"{_TOO_LONG}: {message}"
    return message


def _dotted(path: str, under: str) -> str:
    """Returns a path such as `$.messages[0].content` as `messages.0.content`."""
    path = path.removeprefix("$").replace("[", ".").replace("]", "").strip(".")
    return _join(under, path) if path else under


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _shorten(text: str) -> str:
    return shorten(text, _MAX_CHARS)
