"""A JSON schema without references, which chat templates and small models read best.

Only types that contain themselves stay apart, under `$defs`.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

_SCHEMA_KEYS = ("items", "additionalProperties")
_SCHEMA_LIST_KEYS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SCHEMA_MAP_KEYS = ("properties", "patternProperties")

Schema = dict[str, Any]


def inline_schema(struct: type[msgspec.Struct]) -> dict[str, object]:
    """The schema of a struct."""
    (root,), components = msgspec.json.schema_components([struct], ref_template="{name}")
    own = components.pop(root["$ref"])
    loops = {name for name in components if name in _reachable(name, components)}
    schema = _expand(own, components, loops)
    if loops:
        # In an order that is the same in every process: the schema is part of the prompt.
        schema["$defs"] = {
            name: _expand(components[name], components, loops) for name in sorted(loops)
        }
    return schema


def _reachable(name: str, components: dict[str, Schema]) -> set[str]:
    found: set[str] = set()
    todo = list(_references(components[name]))
    while todo:
        reference = todo.pop()
        if reference not in found:
            found.add(reference)
            todo += _references(components[reference])
    return found


def _references(schema: Schema) -> Iterator[str]:
    if "$ref" in schema:
        yield schema["$ref"]
    for part in _parts(schema):
        yield from _references(part)


def _parts(schema: Schema) -> Iterator[Schema]:
    """The schemas directly inside; defaults, enums and examples are values, not schemas."""
    for key in _SCHEMA_KEYS:
        if isinstance(schema.get(key), dict):
            yield schema[key]
    for key in _SCHEMA_LIST_KEYS:
        yield from (part for part in schema.get(key, ()) if isinstance(part, dict))
    for key in _SCHEMA_MAP_KEYS:
        yield from schema.get(key, {}).values()


def _expand(schema: Schema, components: dict[str, Schema], loops: set[str]) -> Schema:
    def expand(part: Any) -> Any:
        return _expand(part, components, loops) if isinstance(part, dict) else part

    # Titles repeat the names of types, and discriminators point at what is no longer apart.
    made = {key: value for key, value in schema.items() if key not in ("title", "discriminator")}
    if all(isinstance(choice, str) for choice in made.get("enum", [None])):
        made = {"type": "string", **made}
    reference = made.pop("$ref", None)
    for key in _SCHEMA_KEYS:
        if key in made:
            made[key] = expand(made[key])
    for key in _SCHEMA_LIST_KEYS:
        if key in made:
            made[key] = [expand(part) for part in made[key]]
    for key in _SCHEMA_MAP_KEYS:
        if key in made:
            made[key] = {name: expand(part) for name, part in made[key].items()}
    if reference in loops:
        return {"$ref": f"#/$defs/{reference}", **made}
    return made if reference is None else {**expand(components[reference]), **made}
