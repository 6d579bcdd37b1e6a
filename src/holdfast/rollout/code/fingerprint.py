"""Fingerprints of code: what makes a rollout, or a scorer, the same when its run goes on.

A fingerprint covers the file that defines the code, the file that it was taken from, the user's own
modules that these import (see `files`), its own source where the file has several of its name, the
plain values that it was made with (see `values`), or the `identity` of a processor.
"""

import functools
import hashlib
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum, auto
from pathlib import Path
from types import FunctionType, MethodType, ModuleType

from holdfast.records.run import Code
from holdfast.rollout.code.definitions import own_source
from holdfast.rollout.code.files import files_of, is_own
from holdfast.rollout.code.named import identified_in
from holdfast.rollout.code.source import bytecode, simple_text, without_evaluations
from holdfast.rollout.code.values import Values, is_short, is_tool, whole_identity


class _Reading:
    """What is taken down while an `identity` is asked for: it may stand for code as well."""

    def __init__(self, as_of: "_AsOf | None" = None):
        self.files: dict[str, str] = {}
        self.as_of = as_of


class _AsOf(Enum):
    """How older versions took it."""

    ONE_FILE = auto()
    TEXTS = auto()
    """Of what a function closes over, texts alone counted; of other values, a partial's."""
    HELPERS = auto()
    """What only evaluations in the code's own file use counted, too."""


_reading: "ContextVar[_Reading | None]" = ContextVar("reading", default=None)


def fingerprint_of(candidate: object) -> str:
    """`name@digest`."""
    return fingerprinted(candidate)[0]


def fingerprinted(candidate: object, *, module: ModuleType | None = None) -> tuple[str, Code]:
    """`name@digest`, and what it stands for. `module` is what the user named as having it: what it
    is made with may stand there, whichever file defines it."""
    function = getattr(candidate, "function", candidate)
    subject = _subject(function)
    name = getattr(subject, "__name__", type(candidate).__name__)
    with _reading_files() as reading:
        now, values = _current(candidate, subject, module)
    with _reading_files(_AsOf.HELPERS):
        helpers, _ = _current(candidate, subject, module)
    with _reading_files(_AsOf.TEXTS):
        source, named = _code(subject), b"" if module is None else _module_file(module, subject)
        texts = _digest(source, _texts(function, subject), _identity(candidate), named)
    with _reading_files(_AsOf.ONE_FILE):
        before = _digest(_file(subject) + _identity(candidate))
    code = Code(
        reading.files,
        f"{name}@{before}",
        f"{name}@{texts}",
        values=tuple(each for each, _ in values),
        value_digests={each: _digest(_encoded([(each, text)])) for each, text in values},
        helpers=f"{name}@{helpers}",
    )
    return f"{name}@{now}", code


def _current(
    candidate: object, subject: object, module: ModuleType | None
) -> tuple[str, list[tuple[str, str]]]:
    """The digest, and the values in it, each with its name."""
    if (whole := whole_identity(candidate)) is not None:
        return _digest(whole.encode()), []
    identity = _identity(candidate)
    code, own = _code(subject), own_source(_plain_function(subject))
    # What an object says of itself is what there is to say.
    values = [] if identity else _values(candidate)
    values += _identities(candidate)
    named = b"" if module is None else _module_file(module, subject)
    return _digest(code, own, _encoded(values), identity, named), values


def _identities(candidate: object) -> list[tuple[str, str]]:
    """What it asks, such as a judge, is what it is when it is asked, wherever that comes from."""
    named = identified_in(getattr(candidate, "function", candidate))
    found = [(type(each).__name__, str(getattr(each, "identity", ""))) for each in named]
    return sorted(found)


def code_of(*candidates: object) -> str:
    """A digest of what defines them: for the `identity` of a processor with users' functions."""
    reading = _reading.get()
    as_of = None if reading is None else reading.as_of
    parts: list[bytes] = []
    for candidate in candidates:
        subject = _subject(candidate)
        if as_of is _AsOf.ONE_FILE:
            parts.append(_file(subject))
        elif as_of is _AsOf.TEXTS:
            function = getattr(candidate, "function", candidate)
            parts += [_code(subject), _texts(function, subject)]
        else:
            own = own_source(_plain_function(subject))
            values = [] if _identity(candidate) else _values(candidate)
            named = _named(candidate).encode("utf-8", "surrogatepass")
            parts += [_code(subject), own, _encoded(values), named]
    return _digest(*parts)


def _named(candidate: object) -> str:
    """What tells a function, or a tool, from others in its file; "" for anything else."""
    if isinstance(candidate, FunctionType | MethodType | functools.partial) or is_tool(candidate):
        return Values(_own_code).text(candidate)
    return ""


def _values(candidate: object) -> list[tuple[str, str]]:
    return Values(_own_code).of(candidate)


def _encoded(values: list[tuple[str, str]]) -> bytes:
    return repr(values).encode("utf-8", "surrogatepass") if values else b""


def _own_code(subject: object) -> "bytes | None":
    """What stands for a function, or a class, that is the user's own."""
    if not is_own(subject):
        return None
    return _digest(_code(subject), own_source(subject)).encode()


def _plain_function(subject: object) -> object:
    return subject.__func__ if isinstance(subject, MethodType) else subject


def note_files(subject: object, *, keep: str = "", root: str | None = None) -> bytes:
    """What stands for code in a file, which is noted; OSError or TypeError where it is in none.
    `keep` and `root` as in `files_of`."""
    own = Path(inspect.getfile(subject))  # type: ignore[arg-type]
    name = subject.__name__ if isinstance(subject, ModuleType) else _module_of(subject)
    digest, imported = files_of(own, module=name, keep=keep, root=root)
    if (reading := _reading.get()) is not None:
        reading.files |= {_label(own, digest, reading.files | imported): digest} | imported
    # Its own file may be renamed; where the others are imported from is code.
    return repr((digest, list(imported.items()))).encode("utf-8", "surrogatepass")


def _module_of(subject: object) -> str:
    return str(getattr(subject, "__module__", ""))


def _label(file: Path, digest: str, taken: Mapping[str, str]) -> str:
    """Its name, with as many folders as it takes to be no other file's."""
    label = file.name
    for folder in file.resolve().parents:
        if taken.get(label, digest) == digest:
            break
        label = f"{folder.name}/{label}"
    return label


@contextmanager
def noted_files() -> Iterator[dict[str, str]]:
    """The files that are noted in the block."""
    with _reading_files() as reading:
        yield reading.files


@contextmanager
def _reading_files(as_of: _AsOf | None = None) -> Iterator[_Reading]:
    reading = _Reading(as_of)
    token = _reading.set(reading)
    try:
        yield reading
    finally:
        _reading.reset(token)


def _identity(candidate: object) -> bytes:
    identity = getattr(candidate, "identity", "")
    return identity.encode() if isinstance(identity, str) else b""


def _subject(candidate: object) -> object:
    """What of it has a file: the function under partials and wrappers, or the class."""
    candidate = getattr(candidate, "function", candidate)
    while isinstance(candidate, functools.partial):
        candidate = candidate.func
    if callable(candidate):
        candidate = inspect.unwrap(candidate)
    named = callable(candidate) and hasattr(candidate, "__name__")
    return candidate if named else type(candidate)


def _code(subject: object) -> bytes:
    try:
        return note_files(subject, root=_root(subject))
    except (TypeError, OSError):
        return bytecode(subject)


def _root(subject: object) -> str | None:
    """Its name at the top of its file; None where all of the file counts, as it did before."""
    reading = _reading.get()
    if reading is not None and reading.as_of is not None:
        return None
    return str(getattr(subject, "__qualname__", "")).partition(".")[0]


def _module_file(module: ModuleType, subject: object) -> bytes:
    """The file of `module`, where it is another one than that which defines the code."""
    try:
        own = Path(inspect.getfile(subject)).resolve()  # type: ignore[arg-type]
    except (TypeError, OSError):
        own = None
    try:
        return b"" if own == Path(inspect.getfile(module)).resolve() else note_files(module)
    except (TypeError, OSError):
        return b""


def _file(subject: object) -> bytes:
    """As it was when the code's own file alone counted."""
    try:
        return without_evaluations(Path(inspect.getfile(subject)).read_bytes())  # type: ignore[arg-type]
    except (TypeError, OSError):
        return bytecode(subject)


def _texts(candidate: object, subject: object) -> bytes:
    """As it was when what partials hold, and the texts that are closed over, alone counted. What
    takes long to read is another one now."""
    parts: list[object] = []
    while isinstance(candidate, functools.partial):
        parts += [candidate.args, candidate.keywords]
        candidate = candidate.func
    for cell in getattr(subject, "__closure__", None) or ():
        try:
            held = cell.cell_contents
        except ValueError:  # Not bound yet.
            continue
        if issubclass(type(held), str | bytes):
            parts.append(held)
    if not is_short(parts):
        return b"?"
    return simple_text(parts).encode("utf-8", "surrogatepass") if parts else b""


def _digest(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()[:12]
