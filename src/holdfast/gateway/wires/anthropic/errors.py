"""Errors as Anthropic says them, and what is wrong with a request as its errors name it.

Knows: types by status, where the fault is (`messages.0.content.1.text`). A message is cut to a
bound, since it may quote what a client sent.
"""

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
"""What agents look for before they compact their history."""
_LONGEST = 600
_FOUND = re.compile(r"(?P<what>.*?)(?: - at `(?P<path>\$.*)`)?", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_TAG = re.compile(r"Invalid value (.*)", re.DOTALL)


def refusal(rejection: RequestRejected) -> bytes:
    """The body of an error. A `kind` of another provider gives way to the status."""
    error: dict[str, object] = {"type": _type(rejection), "message": _message(rejection)}
    if rejection.code:
        error["details"] = {"error_code": rejection.code}
    return msgspec.json.encode({"type": "error", "error": error})


def bad(where: str, what: str) -> RequestRejected:
    """A request that is wrong at `where`."""
    text = f"{where}: {what}" if where else what
    return RequestRejected(400, _cut(text), param=_cut(where) or None)


def unsupported(where: str, what: str = "") -> RequestRejected:
    """A request for something that cannot be done here."""
    found = bad(where, f"not supported here{f'; {what}' if what else ''}")
    found.is_unsupported = True
    return found


def unknown(where: str) -> RequestRejected:
    """A member that nobody knows."""
    found = bad(where, "Extra inputs are not permitted")
    found.is_unknown = found.is_unsupported = True
    return found


def misshapen(error: Exception, *, under: str = "") -> RequestRejected:
    """What a decoder complained about, with its place in the request."""
    said = _FOUND.fullmatch(str(error))
    assert said is not None, "the pattern matches any text"
    what, place = said["what"], _place(said["path"] or "$", under)
    if missing := _MISSING.fullmatch(what):
        return bad(_inside(place, missing[1]), "Field required")
    if found := _UNKNOWN.fullmatch(what):
        return unknown(_inside(place, found[1]))
    if (tag := _TAG.fullmatch(what)) and place.endswith(("type", "role")):
        return unsupported(place, f"it is {tag[1]}")
    if isinstance(error, msgspec.ValidationError):
        return bad(place, what)
    return bad("", f"The request body is not valid JSON: {what}")


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


def _place(path: str, under: str) -> str:
    """`$.messages[0].content` is `messages.0.content`."""
    place = path.removeprefix("$").replace("[", ".").replace("]", "").strip(".")
    return _inside(under, place) if place else under


def _inside(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _cut(text: str) -> str:
    return shorten(text, _LONGEST)
