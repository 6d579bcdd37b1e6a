"""The parameters of a tool: the schema that a model sees, and the arguments decoded from its
answer.

`Signature` reads the parameters of a typed function. `ReadySchema` takes a JSON schema as it is. A
tool whose parameters cannot be shown to a model, or cannot be given as JSON, is refused when it is
defined.
"""

import functools
import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from types import UnionType
from typing import Annotated, Any, Optional, Protocol, Union, get_args, get_origin, get_type_hints

import msgspec

from holdfast.records.encoding.declared import function_name
from holdfast.records.errors import UsageError
from holdfast.records.foreign import headline_of
from holdfast.rollout.tools import validate
from holdfast.rollout.tools.docstring import Docstring, parse

KEY_PARAMETER = "idempotency_key"
_ABSENT = object()


class ParameterSchema(Protocol):
    """The interface of `Signature` and `ReadySchema`. `decode` raises msgspec's errors, whose
    messages are shown to the model."""

    description: str
    schema: dict[str, object]
    wants_key: bool

    def decode(self, arguments: str | bytes) -> dict[str, object]:
        """Decodes the function's arguments from JSON. Arguments that are missing are left out, so
        that the function uses its defaults."""
        ...


class Signature:
    """The parameters of a typed function."""

    def __init__(self, function: Callable[..., object], name: str):
        self._tool = name
        written = _source_function(function, name)
        docstring = _docstring(function, written)
        hints = _hints(written, name)
        parameters = self._parameters(function, hints)
        self.wants_key = KEY_PARAMETER in _signature(function, name).parameters
        fields: list[Any] = [_field(parameter, hints[parameter.name]) for parameter in parameters]
        self._struct = msgspec.defstruct(
            "Arguments", fields, forbid_unknown_fields=True, kw_only=True
        )
        returns = f"\n\nReturns: {docstring.returns}" if docstring.returns else ""
        self.description = (docstring.description + returns).strip()
        self.schema = inline_schema(self._struct)
        properties = self.schema["properties"]
        assert isinstance(properties, dict), "msgspec describes a struct by its properties"
        for parameter in parameters:
            _describe_property(
                properties[parameter.name], parameter, hints[parameter.name], docstring
            )

    def decode(self, arguments: str | bytes) -> dict[str, object]:
        bound = msgspec.json.decode(arguments, type=self._struct)
        values = {field: getattr(bound, field) for field in self._struct.__struct_fields__}
        return {field: value for field, value in values.items() if value is not _ABSENT}

    def _parameters(
        self, function: Callable[..., object], hints: dict[str, Any]
    ) -> list[inspect.Parameter]:
        """Returns the parameters that the model sets. Raises `UsageError` if a parameter has no
        type, or a type that JSON cannot express."""
        bound = function.keywords if isinstance(function, functools.partial) else {}
        parameters = [
            parameter
            for parameter in _signature(function, self._tool).parameters.values()
            if parameter.name != KEY_PARAMETER and parameter.name not in bound
        ]
        for parameter in parameters:
            self._check_kind(parameter)
            if parameter.default is None and parameter.name in hints:
                # `limit: int = None` means that the model may pass null.
                hints[parameter.name] = Optional[hints[parameter.name]]  # noqa: UP045  (of any hint)
            self._check_hint(parameter, hints)
        return parameters

    def _check_kind(self, parameter: inspect.Parameter) -> None:
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            raise UsageError(
                f"tool {self._tool}: *{parameter.name} cannot be shown to a model; "
                "take a list or a dict as one parameter"
            )
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise UsageError(
                f"tool {self._tool}: {parameter.name} cannot be given by name; "
                "remove the / from the signature"
            )

    def _check_hint(self, parameter: inspect.Parameter, hints: dict[str, Any]) -> None:
        where = f"tool {self._tool}: parameter {parameter.name}"
        if parameter.name not in hints:
            raise UsageError(
                f"{where} has no type, so the model cannot know what to give; annotate it "
                "(with `Any` if it takes anything)"
            )
        hint = hints[parameter.name]
        try:
            msgspec.json.schema(hint)
            msgspec.json.Decoder(hint)
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"{where} has the type {_name(hint)}, which cannot be given as JSON ({error}); use "
                "str, int, float, bool, a Literal or Enum, or a list, dict, dataclass, TypedDict "
                "or msgspec.Struct of these"
            ) from error


class ReadySchema:
    """A JSON schema of an object, for a function that gets the object's members as keyword
    arguments."""

    def __init__(
        self,
        function: Callable[..., object],
        *,
        name: str,
        description: str,
        parameters: Mapping[str, object],
    ):
        try:
            self.schema: dict[str, object] = json.loads(msgspec.json.encode(parameters))
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(
                f"tool {name}: its parameters are not a JSON schema: {error}"
            ) from error
        if not isinstance(self.schema, dict) or self.schema.get("type", "object") != "object":
            raise UsageError(
                f"tool {name}: its parameters have to be the schema of an object, like "
                '{"type": "object", "properties": {…}}'
            )
        self.schema.setdefault("type", "object")
        properties = self.schema.setdefault("properties", {})
        if not isinstance(properties, dict):
            raise UsageError(f"tool {name}: the properties of its parameters are not an object")
        self.description = description
        self.wants_key = KEY_PARAMETER not in properties and _takes_key(function)

    def decode(self, arguments: str | bytes) -> dict[str, object]:
        decoded = msgspec.json.decode(arguments)
        wrong = validate.problem(decoded, self.schema)
        if wrong:
            raise msgspec.ValidationError(wrong)
        assert isinstance(decoded, dict), "the schema is that of an object"
        return decoded


def name_of(function: Callable[..., object]) -> str:
    """Returns the name of a function, also if the function is wrapped in partials."""
    while isinstance(function, functools.partial):
        function = function.func
    return function_name(function)


def _source_function(function: Callable[..., object], name: str) -> Callable[..., object]:
    """Returns the function that has the type hints and the docstring: the function inside of
    partials, or the `__call__` of an object. Raises `UsageError` if it cannot be a tool."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isclass(function):
        raise UsageError(f"tool {name}: {function.__name__} is a class; give a function")
    if not callable(function):
        raise UsageError(f"tool {name}: {type(function).__name__} cannot be called")
    written = function if inspect.isroutine(function) else type(function).__call__
    if inspect.isgeneratorfunction(written) or inspect.isasyncgenfunction(written):
        raise UsageError(f"tool {name}: it yields, but a call has one result; return a list")
    return written


def _signature(function: Callable[..., object], name: str) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise UsageError(f"tool {name}: {error}; wrap it in a typed function") from error


def _takes_key(function: Callable[..., object]) -> bool:
    try:
        return KEY_PARAMETER in inspect.signature(function).parameters
    except (TypeError, ValueError):  # Builtins may have no signature.
        return False


def _hints(written: Callable[..., object], name: str) -> dict[str, Any]:
    try:
        return get_type_hints(written, include_extras=True)
    except Exception as error:  # Evaluating annotations may raise anything.
        raise UsageError(
            f"tool {name}: its annotations cannot be read ({headline_of(error)}); "
            "the types in them have to be defined at the top level of its module"
        ) from error


def _docstring(function: Callable[..., object], written: Callable[..., object]) -> Docstring:
    if inspect.isroutine(function) or isinstance(function, functools.partial):
        return parse(inspect.getdoc(written) or "")
    # For a callable object: the docstring of its `__call__`, else that of its class. `getdoc` would
    # return the docstring of calls of any object.
    return parse(inspect.cleandoc(written.__doc__ or type(function).__doc__ or ""))


def _field(parameter: inspect.Parameter, hint: object) -> tuple[object, ...]:
    if parameter.default is parameter.empty:
        return parameter.name, hint
    # The function keeps its own default, which may be any object.
    return parameter.name, hint, msgspec.field(default_factory=lambda: _ABSENT)


def _describe_property(
    properties: dict[str, object], parameter: inspect.Parameter, hint: object, docstring: Docstring
) -> None:
    description = _annotated_text(hint) or docstring.parameters.get(parameter.name, "")
    described_by_type = "description" in properties and not _has_description(hint)
    if description and (described_by_type or "description" not in properties):
        properties["description"] = description
    if parameter.default is not parameter.empty:
        try:
            default = json.loads(msgspec.json.encode(parameter.default))
        except (TypeError, ValueError, RecursionError):
            return  # A marker for the function itself, which means nothing to a model.
        if default is not None or parameter.default is None:
            properties["default"] = default


def _annotated_text(hint: object) -> str:
    """Returns the description in a type hint: "words" for `Annotated[int, "words"]`."""
    texts = (getattr(item, "documentation", item) for item in _metadata(hint))
    return next((text for text in texts if isinstance(text, str)), "")


def _has_description(hint: object) -> bool:
    return any(isinstance(item, msgspec.Meta) and item.description for item in _metadata(hint))


def _metadata(hint: object) -> list[object]:
    """Returns the metadata of `Annotated`, also inside an optional type."""
    if get_origin(hint) is Annotated:
        return list(get_args(hint)[1:])
    if get_origin(hint) in (Union, UnionType):
        return [entry for argument in get_args(hint) for entry in _metadata(argument)]
    return []


def _name(hint: object) -> str:
    return hint.__qualname__ if isinstance(hint, type) else str(hint)


_SCHEMA_KEYS = ("items", "additionalProperties")
_SCHEMA_LIST_KEYS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SCHEMA_MAP_KEYS = ("properties", "patternProperties")

Schema = dict[str, Any]


def inline_schema(struct: type[msgspec.Struct]) -> dict[str, object]:
    """Returns the schema of a struct without references, which chat templates and small models read
    best. Only types that contain themselves stay separate, under `$defs`."""
    (root,), components = msgspec.json.schema_components([struct], ref_template="{name}")
    own = components.pop(root["$ref"])
    loops = {name for name in components if name in _reachable(name, components)}
    schema = _expand(own, components, loops)
    if loops:
        # In the same order in every process, because the schema is part of the prompt.
        schema["$defs"] = {
            name: _expand(components[name], components, loops) for name in sorted(loops)
        }
    return schema


def _reachable(name: str, components: dict[str, Schema]) -> set[str]:
    references: set[str] = set()
    todo = list(_references(components[name]))
    while todo:
        reference = todo.pop()
        if reference not in references:
            references.add(reference)
            todo += _references(components[reference])
    return references


def _references(schema: Schema) -> Iterator[str]:
    if "$ref" in schema:
        yield schema["$ref"]
    for part in _parts(schema):
        yield from _references(part)


def _parts(schema: Schema) -> Iterator[Schema]:
    """Yields the schemas that are direct members of a schema. Defaults, enums and examples are
    values, not schemas."""
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

    # Titles repeat the names of types, and discriminators refer to definitions that are now
    # inlined.
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
