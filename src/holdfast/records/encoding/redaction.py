"""Keeps secrets out of journals, logs and errors.

Text that looks like a credential is removed from every text that leaves the process. Secrets that
the process is known to hold (`hide`) are removed everywhere, in any form. Text that a model writes
or reads is data and never changes.
"""

import base64
import binascii
import json
import re
from collections.abc import Iterator, Mapping
from urllib.parse import quote, unquote, urlsplit

SHORTEST = 6
REDACTED = "[redacted]"
_SHORTEST_LINE = 16
"""The length of the shortest line that is hidden on its own, if a secret has several lines, as a
private key has."""
_SECRET_NAME = re.compile(
    r"(?i)(?:key|token|secret|password|passwd|passphrase|credential|cookie|auth|authorization"
    r"|(?<![a-z])(?:pass|pat|bearer)|(?<=[_-])pwd)s?(?=$|[^a-z])"
)
_PUBLIC_PARAMETERS = ("host", "port", "user", "dbname", "database")
_RANDOM = re.compile(r"(?i)(?=[a-z]*\d)(?=\d*[a-z])[a-z\d]{12,}")
_CREDENTIALS = (
    re.compile(r"(?i)(bearer\s+)[^\s\"',;]+"),
    re.compile(
        r"(?i)(\b[a-z0-9_-]*(?:api[_-]?key|authorization|token|secret|password)"
        r"[\"']?\s*[:=]\s*[\"']?(?!bearer\b)(?=[^\s\"',;\d]|\d*[a-z]))"
        # A text that is already redacted is matched whole, with its bracket.
        r"(?:(?:\[redacted\][^\s\"',;)}\]]*)+|[^\s\"',;)}\]]{6,})"
    ),
    # In a server's address, only the password is removed. The user needs the rest to repeat the
    # command.
    re.compile(r"(?i)(\bpostgres(?:ql)?://[^/:@\s\"',;]*:)[^/\s\"',;]+(?=@)"),
    re.compile(r"(?i)(\b(?!postgres(?:ql)?://)[a-z][a-z0-9+.-]*://)[^/\s\"',;]+(?=@)"),
    re.compile(r"(\b)(?:sk|pk|hf|ghp|xox[bp])[-_][A-Za-z0-9_-]{8,}"),
)
_BASIC = re.compile(r"(?i)(\bbasic\s+)([a-z0-9+/_-]{4,}={0,2})")
_hidden: dict[str, None] = {}
"""The hidden secrets, the longest first, because one secret may contain another."""


def hide(secret: str | None) -> None:
    """Makes `redact` remove `secret` from every text from now on, including its forms in URLs and
    JSON. Secrets that are too short are ignored, because they would match words."""
    global _hidden
    if secret is None:
        return
    forms = {form for form in _forms(secret) if len(form) >= SHORTEST}
    if not forms <= _hidden.keys():
        _hidden = dict.fromkeys(sorted(forms | _hidden.keys(), key=len, reverse=True))


def _forms(secret: str) -> Iterator[str]:
    yield from (secret, secret.strip(), json.dumps(secret)[1:-1])
    yield quote(secret, safe="", errors="surrogatepass")
    lines = [line.strip() for line in secret.splitlines()]
    yield from (line for line in lines if len(line) >= _SHORTEST_LINE)


def is_secret_name(name: str) -> bool:
    """Returns whether the name of a variable or field says that the value is a secret."""
    return _SECRET_NAME.search(name) is not None


def hide_variables(variables: Mapping[str, str]) -> None:
    """Hides the secrets among a program's variables. These are the values of variables with a
    secret's name, and values with a random-looking part."""
    for name, value in variables.items():
        is_path_or_text = any(character.isspace() or character == "/" for character in value)
        if is_secret_name(name) or (_RANDOM.search(value) and not is_path_or_text):
            hide(value)


def hide_credentials(url: str) -> None:
    """Hides the user and the password of an address, both as written and as sent."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return  # Not an address. The code that uses it reports this.
    if parts.username is None and parts.password is None:
        return
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    hide(password or user)
    hide(f"{user}:{password}")
    hide(base64.b64encode(f"{user}:{password}".encode()).decode())


def public_address(url: str) -> str:
    """Returns the address of a server without its password and without parameters that may be
    secret."""
    scheme, _, rest = url.partition("://")
    place, _, query = rest.partition("?")
    # A password may contain any character, escaped or not. The host follows the last @.
    user, at, host = place.rpartition("@")
    port = host.partition("/")[0].rpartition(":")[2]
    is_no_port = not port.rstrip("]").isdigit() and "," not in host
    if not at and ":" in host.partition("/")[0] and (is_no_port or "@" in query):
        # The port is not a number, so the password contains a question mark.
        user, at, host, query = host, "@", "…", ""
    shown = [pair for pair in query.split("&") if pair.partition("=")[0] in _PUBLIC_PARAMETERS]
    name = f"{scheme}://{user.partition(':')[0]}{at}{host.partition('#')[0]}"
    return f"{name}?{'&'.join(shown)}" if shown else name


def redact(text: str) -> str:
    """Returns `text` without credentials. Call it before the text reaches a journal, a log or an
    error."""
    text = without_hidden(text)
    for pattern in _CREDENTIALS:
        text = pattern.sub(rf"\1{REDACTED}", text)
    return _BASIC.sub(_without_basic, text)


def without_hidden(text: str) -> str:
    """Returns `text` without known secrets. Call it before you cut a text, because a part of a
    secret would not be recognized."""
    for secret in _hidden:
        text = text.replace(secret, REDACTED)
    return text


def _without_basic(matches: re.Match[str]) -> str:
    """Redacts the text after the word `basic` if it is an encoded user with a password."""
    encoded = matches[2].rstrip("=").replace("-", "+").replace("_", "/")
    try:
        decoded = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except binascii.Error:
        return matches[0]
    return f"{matches[1]}{REDACTED}" if b":" in decoded else matches[0]
