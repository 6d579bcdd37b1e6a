"""Keeping secrets out of journals, logs and errors.

Two ways: what looks like a credential is taken out of every text that leaves, and a secret that the
process is known to hold (`hide`) is taken out wherever it stands, whatever it looks like.
"""

import re

SHORTEST = 6
REDACTED = "[redacted]"

_CREDENTIALS = (
    re.compile(r"(?i)(bearer\s+)[^\s\"',;]+"),
    re.compile(
        r"(?i)(\b[a-z0-9_-]*(?:api[_-]?key|authorization|token|secret|password)"
        r"[\"']?\s*[:=]\s*[\"']?(?!bearer\b)(?=[^\s\"',;\d]|\d*[a-z]))[^\s\"',;)}\]]{6,}"
    ),
    re.compile(r"(?i)(\b[a-z][a-z0-9+.-]*://)[^/\s\"',;]+(?=@)"),
    re.compile(r"(\b)(?:sk|pk|hf|ghp|xox[bp])[-_][A-Za-z0-9_-]{8,}"),
)
_hidden: set[str] = set()


def hide(secret: str | None) -> None:
    """From now on, `redact` takes `secret` out of everything. Too short ones would match words."""
    if secret is not None and len(secret) >= SHORTEST:
        _hidden.add(secret)


def redact(text: str) -> str:
    """`text` without credentials, before it reaches a journal, a log or an error."""
    for secret in _hidden:
        text = text.replace(secret, REDACTED)
    for pattern in _CREDENTIALS:
        text = pattern.sub(r"\1[redacted]", text)
    return text
