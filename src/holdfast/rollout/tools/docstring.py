"""Splits a docstring into the description, the parameters and the return value.

Reads the Google, NumPy and reST styles. Other sections (examples, notes) stay in the description
word for word. The section of raised errors is dropped, because it is not for the model.
"""

import re
from itertools import takewhile

from msgspec import Struct

_PARAMETERS = {"args", "arguments", "parameters", "params", "keyword args", "keyword arguments"}
_PARAMETERS |= {"other parameters"}
_RETURNS = {"return", "returns"}
_LEFT_OUT = {"raises", "yields", "warns"}
_KNOWN = _PARAMETERS | _RETURNS | _LEFT_OUT

_FIELD = re.compile(r":(\w+)(?:\s+([^:]*?))?:(?:\s+(.*))?$")
_PARAMETER_FIELDS = {"param", "parameter", "arg", "argument", "key", "keyword"}
_OTHER_FIELDS = {"type", "rtype", "raises", "raise", "except", "exception"}
_GOOGLE_ENTRY = re.compile(r"\*{0,2}(\w+)\s*(?:\(.*?\))?\s*:\s*(.*)$")
_UNDERLINE = re.compile(r"-{3,}\s*$")


class Docstring(Struct, frozen=True):
    description: str = ""
    parameters: dict[str, str] = {}
    returns: str = ""


def parse(text: str) -> Docstring:
    """Splits a docstring into its parts. `text` has no indentation, as returned by
    `inspect.getdoc`."""
    reader = _Reader(text.splitlines())
    reader.read()
    description = re.sub(r"\n{3,}", "\n\n", "\n".join(reader.prose)).strip()
    return Docstring(description, reader.parameters, reader.returns)


class _Reader:
    def __init__(self, lines: list[str]):
        self._lines = lines
        self._at = 0
        self.prose: list[str] = []
        self.parameters: dict[str, str] = {}
        self.returns = ""

    def read(self) -> None:
        while self._at < len(self._lines):
            if not (self._numpy_section() or self._google_section() or self._field()):
                self.prose.append(self._lines[self._at])
                self._at += 1

    def _numpy_section(self) -> bool:
        title = self._title_here()
        if title is None:
            return False
        begin = end = self._at + 2
        while end < len(self._lines) and not self._is_underlined(end):
            end += 1
        block = self._lines[begin:end]
        if title in _PARAMETERS:
            self._keep(_numpy_entries(block))
        elif title in _RETURNS:
            self.returns = _join_lines([line for line in block if _indent(line)] or block)
        elif title not in _LEFT_OUT:
            self.prose += self._lines[self._at : end]
        self._at = end
        return True

    def _title_here(self) -> str | None:
        """Returns the title of the NumPy section that begins here, or None."""
        return self._lines[self._at].strip().lower() if self._is_underlined(self._at) else None

    def _is_underlined(self, index: int) -> bool:
        line = self._lines[index]
        following = self._lines[index + 1] if index + 1 < len(self._lines) else ""
        return bool(line.strip()) and not _indent(line) and bool(_UNDERLINE.match(following))

    def _google_section(self) -> bool:
        line = self._lines[self._at]
        title = line.rstrip().removesuffix(":").lower()
        block = self._indented_below()
        if not line.rstrip().endswith(":") or title not in _KNOWN or not any(block):
            return False
        if title in _PARAMETERS:
            self._keep(_google_entries(block))
        elif title in _RETURNS:
            self.returns = _join_lines(block)
        self._at += 1 + len(block)
        return True

    def _field(self) -> bool:
        match = _FIELD.match(self._lines[self._at])
        if match is None:
            return False
        kind, subject, text = match[1].lower(), match[2] or "", match[3] or ""
        if kind not in _PARAMETER_FIELDS | _OTHER_FIELDS | _RETURNS:
            return False
        below = self._indented_below()
        description = _join_lines([text, *below])
        if kind in _PARAMETER_FIELDS and subject:
            # In `:param int limit:`, the name is the last word.
            self._keep([(subject.split()[-1].lstrip("*"), description)])
        elif kind in _RETURNS:
            self.returns = description
        self._at += 1 + len(below)
        return True

    def _indented_below(self) -> list[str]:
        below = self._lines[self._at + 1 :]
        block = list(takewhile(lambda line: _indent(line) or not line.strip(), below))
        while block and not block[-1].strip():
            block.pop()
        return block

    def _keep(self, entries: list[tuple[str, str]]) -> None:
        self.parameters.update({name: text for name, text in entries if text})


def _google_entries(block: list[str]) -> list[tuple[str, str]]:
    base = min(_indent(line) for line in block if line.strip())
    entries: list[tuple[str, list[str]]] = []
    for line in block:
        match = _GOOGLE_ENTRY.match(line.strip()) if _indent(line) == base else None
        if match is not None:
            entries.append((match[1], [match[2]]))
        elif entries:
            entries[-1][1].append(line)
    return [(name, _join_lines(lines)) for name, lines in entries]


def _numpy_entries(block: list[str]) -> list[tuple[str, str]]:
    entries: list[tuple[str, list[str]]] = []
    for line in block:
        if line.strip() and not _indent(line):
            entries.append((line.partition(":")[0], []))
        elif entries:
            entries[-1][1].append(line)
    return [
        (name.strip().lstrip("*"), _join_lines(lines))
        for names, lines in entries
        for name in names.split(",")
    ]


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip()) if line.strip() else 0


def _join_lines(lines: list[str]) -> str:
    return " ".join(" ".join(lines).split())
