"""Checks arguments against a ready-made JSON schema, with errors that help a model.

It checks the part of JSON Schema that tools usually use: types, enum, const, required, properties,
additionalProperties, items, prefixItems, bounds, anyOf, oneOf, allOf and local `$ref`. It ignores
other rules (pattern, format, not, if, …), which the tool has to check itself.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain

Schema = Mapping[str, object]
Bound = tuple[str, Callable[[float, float], bool], str]

_TYPES: dict[str, Callable[[object], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: _is_number(value) and value == value // 1,  # type: ignore[operator]
    "number": lambda value: _is_number(value),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}
_VALUE: tuple[Bound, ...] = (
    ("minimum", lambda value, bound: value >= bound, "must be at least"),
    ("maximum", lambda value, bound: value <= bound, "must be at most"),
    ("exclusiveMinimum", lambda value, bound: value > bound, "must be more than"),
    ("exclusiveMaximum", lambda value, bound: value < bound, "must be less than"),
)
_LENGTHS: tuple[tuple[type, str, str], ...] = (
    (str, "Length", "characters"),
    (list, "Items", "items"),
    (dict, "Properties", "properties"),
)


def problem(value: object, schema: object) -> str:
    """Returns the first mistake in the value, with its position, or "" if the value fits the
    schema."""
    return next(_problems(value, schema, _Position(schema)), "")


class _Position:
    """A place in the value, such as `$.items[3].name`, and the references that led to it."""

    def __init__(self, root: object, path: str = "$", followed: frozenset[str] = frozenset()):
        self.root = root
        self.path = path
        self.followed = followed
        """The references that were followed for this same value, because a schema may refer to
        itself."""

    def inside(self, part: str) -> "_Position":
        return _Position(self.root, self.path + part)

    def by(self, reference: str) -> "_Position":
        return _Position(self.root, self.path, self.followed | {reference})

    def error(self, what: str) -> str:
        return f"`{self.path}` {what}"


def _problems(value: object, schema: object, position: _Position) -> Iterator[str]:
    if schema is False:
        yield position.error("is not allowed")
    if not isinstance(schema, Mapping):
        return
    yield from chain(
        _of_reference(value, schema, position),
        _of_type(value, schema, position),
        _of_choice(value, schema, position),
        _of_bounds(value, schema, position),
        _of_alternatives(value, schema, position),
        _of_object(value, schema, position),
        _of_array(value, schema, position),
    )


def _of_reference(value: object, schema: Schema, position: _Position) -> Iterator[str]:
    reference = schema.get("$ref")
    if not isinstance(reference, str) or not reference.startswith("#"):
        return
    if reference not in position.followed:
        yield from _problems(value, _resolve(reference, position.root), position.by(reference))


def _resolve(reference: str, root: object) -> object:
    """Returns the schema that a local reference names. If there is none, returns True, the schema
    that allows everything."""
    target = root
    for part in reference.lstrip("#").strip("/").split("/"):
        if not part:
            continue
        if not isinstance(target, Mapping):
            return True
        target = target.get(part.replace("~1", "/").replace("~0", "~"), True)
    return target


def _of_type(value: object, schema: Schema, position: _Position) -> Iterator[str]:
    expected_type = schema.get("type")
    names = [expected_type] if isinstance(expected_type, str) else _list(expected_type)
    checks = [_TYPES.get(str(name)) for name in names]
    if checks and all(check is not None and not check(value) for check in checks):
        expected = " or ".join(str(name) for name in names)
        yield position.error(f"must be {expected}, not {_kind(value)}")


def _of_choice(value: object, schema: Schema, position: _Position) -> Iterator[str]:
    choices = [*_list(schema.get("enum")), *([schema["const"]] if "const" in schema else [])]
    if choices and not any(_same(value, choice) for choice in choices):
        listed = ", ".join(_json(choice) for choice in choices)
        yield position.error(f"must be {'one of ' if len(choices) > 1 else ''}{listed}")


def _of_bounds(value: object, schema: Schema, position: _Position) -> Iterator[str]:
    if _is_number(value):
        for keyword, fits, text in _VALUE:
            bound = schema.get(keyword)
            if _is_number(bound) and not fits(value, bound):  # type: ignore[arg-type]
                yield position.error(f"{text} {_json(bound)}")
    for kind, suffix, noun in _LENGTHS:
        if isinstance(value, kind):
            size = len(value)  # type: ignore[arg-type]
            least, most = schema.get(f"min{suffix}"), schema.get(f"max{suffix}")
            if isinstance(least, int) and size < least:
                yield position.error(f"must have at least {least} {noun}")
            if isinstance(most, int) and size > most:
                yield position.error(f"must have at most {most} {noun}")


def _of_alternatives(value: object, schema: Schema, position: _Position) -> Iterator[str]:
    for part in _list(schema.get("allOf")):
        yield from _problems(value, part, position)
    # For oneOf, too, one match is enough, because rules that are not checked here may separate the
    # alternatives.
    for keyword in ("anyOf", "oneOf"):
        ways = _list(schema.get(keyword))
        first = [next(_problems(value, way, position), "") for way in ways]
        if ways and all(first):
            yield position.error(
                "fits none of the alternatives: " + "; ".join(dict.fromkeys(first))
            )


def _of_object(value: object, schema: Schema, position: _Position) -> Iterator[str]:
    if not isinstance(value, dict):
        return
    known = schema.get("properties")
    properties: Mapping[str, object] = known if isinstance(known, Mapping) else {}
    for name in _list(schema.get("required")):
        if name not in value:
            yield position.error(f"lacks the required `{name}`")
    additional = True if "patternProperties" in schema else schema.get("additionalProperties", True)
    for name, item in value.items():
        if name in properties:
            yield from _problems(item, properties[name], position.inside(f".{name}"))
        elif additional is False:
            names = ", ".join(f"`{known}`" for known in properties) or "none"
            yield position.error(f"has an unknown `{name}`; allowed: {names}")
        else:
            yield from _problems(item, additional, position.inside(f".{name}"))


def _of_array(value: object, schema: Schema, position: _Position) -> Iterator[str]:
    if not isinstance(value, list):
        return
    first = _list(schema.get("prefixItems"))
    rest = schema.get("items", True)
    for index, item in enumerate(value):
        item_schema = first[index] if index < len(first) else rest
        yield from _problems(item, item_schema, position.inside(f"[{index}]"))


def _list(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else ()


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _kind(value: object) -> str:
    # An integer is also a number, and the narrower word comes first.
    return next(name for name, check in _TYPES.items() if check(value))


def _same(left: object, right: object) -> bool:
    """Returns whether two JSON values are equal. In JSON, true is not 1."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, list) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(_same, left, right))
    if isinstance(left, dict) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(_same(left[key], right[key]) for key in left)
    return left == right


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=repr)
