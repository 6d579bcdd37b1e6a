"""What makes two scorers the same: their code, their mode, and what they are called with."""

import hashlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path

from holdfast.evaluation.definition.definition import Definition, Mode, Variant
from holdfast.records.run import Code
from holdfast.rollout.code.fingerprint import note_files, noted_files
from holdfast.rollout.code.source import without_evaluations

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_DEEPEST = 20


def scorer_fingerprint(
    definition: Definition,
    variant: Variant,
    arguments: Mapping[str, object] | None = None,
    *,
    judges: Sequence[str] = (),
    tasks: str = "",
) -> tuple[str, Code]:
    """`name@digest`, and what it stands for. Other evaluations in the file, and decorators, are no
    part of it; everything else in the file is, and the modules of the user's own that it imports,
    since a scorer may call it. `arguments` are the values of its parameters beside the variant's
    own, and `self`; `judges` are the identities of those that it asks; `tasks` is the digest of all
    rows."""
    with noted_files() as files:
        now = _digest(definition, variant, arguments, tasks=tasks, code=_files)
    if judges:
        now = hashlib.sha256(repr((now, sorted(judges))).encode()).hexdigest()[:12]
    before = _digest(definition, variant, arguments, tasks=tasks, code=_file)
    name = definition.function.__name__
    return f"{name}@{now}", Code(files, f"{name}@{before}")


def _digest(
    definition: Definition,
    variant: Variant,
    arguments: Mapping[str, object] | None,
    *,
    tasks: str,
    code: "Callable[[object, str], bytes]",
) -> str:
    function = definition.function
    digest = hashlib.sha256(_source(definition, code))
    digest.update(definition.mode.encode())
    digest.update(_text(variant.keywords).encode("utf-8", "surrogatepass"))
    for name, value in sorted((arguments or {}).items()):
        if name == "self":
            for text in _inherited(value, definition, code):
                digest.update(text)
        else:
            digest.update(f"{name}\0{_text(value)}".encode("utf-8", "surrogatepass"))
    for cell in function.__closure__ or ():
        digest.update(_text(_held(cell)).encode("utf-8", "surrogatepass"))
    if definition.mode is Mode.GROUPWISE:
        # Whom a row is compared with is part of how it is judged.
        digest.update(_describe_settings(variant).encode("utf-8", "surrogatepass"))
    elif definition.mode is Mode.ALL:
        digest.update(tasks.encode())
    return digest.hexdigest()[:12]


def _files(subject: object, keep: str) -> bytes:
    return note_files(subject, keep=keep)


def _file(subject: object, keep: str) -> bytes:
    """As it was when the evaluation's own file alone counted."""
    return without_evaluations(Path(inspect.getfile(subject)).read_bytes(), keep=keep)  # type: ignore[arg-type]


def _describe_settings(variant: Variant) -> str:
    """The settings that are compared; "" where there is only one."""
    if len(variant.settings) == 1:
        return ""
    return _text([setting.params for setting in variant.settings])


def _text(value: object, depth: int = 0) -> str:
    """The same in every process for what is equal: sets have no order, and objects without a text
    of their own differ by their types alone."""
    if depth > _DEEPEST:
        return type(value).__qualname__
    if isinstance(value, Mapping):
        items = (f"{_text(key, depth + 1)}: {_text(value[key], depth + 1)}" for key in value)
        return f"{{{', '.join(sorted(items))}}}"
    if isinstance(value, Set):
        return f"{{{', '.join(sorted(_text(item, depth + 1) for item in value))}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_text(item, depth + 1) for item in value)}]"
    return _ADDRESS.sub("", repr(value))


def _held(cell: object) -> object:
    """What a function has from around it; functions there are in some file, and no values."""
    try:
        found = cell.cell_contents  # type: ignore[attr-defined]
    except ValueError:  # Not bound yet.
        return None
    return getattr(found, "__qualname__", found)


def _inherited(
    instance: object, definition: Definition, code: "Callable[[object, str], bytes]"
) -> Iterator[bytes]:
    """An evaluation in a base class is judged with the code of its subclasses, in any file."""
    yield type(instance).__qualname__.encode("utf-8", "surrogatepass")
    own = inspect.getfile(definition.function)
    for base in type(instance).__mro__:
        try:
            if inspect.getfile(base) != own:
                yield code(base, "")
        except (TypeError, OSError):
            continue


def _source(definition: Definition, code: "Callable[[object, str], bytes]") -> bytes:
    try:
        return code(definition.function, definition.function.__qualname__)
    except (TypeError, OSError):
        return definition.function.__code__.co_code
