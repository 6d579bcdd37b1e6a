"""Structured outputs and reasoning effort in OpenAI's requests.

A JSON schema is followed, with or without `strict`: an engine cannot follow it halfway. The model
does not see its name and description.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from holdfast.gateway.wires.openai.errors import invalid
from holdfast.records.errors import UsageError
from holdfast.records.sampling import schema_text

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
_Name = Annotated[str, Meta(min_length=1, max_length=64, pattern="^[a-zA-Z0-9_-]+$")]


class PlainText(Struct, tag="text", tag_field="type", forbid_unknown_fields=True):
    pass


class JsonObject(Struct, tag="json_object", tag_field="type", forbid_unknown_fields=True):
    pass


class _Schema(Struct, forbid_unknown_fields=True):
    name: _Name
    schema: dict[str, object]
    description: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(Struct, tag="json_schema", tag_field="type", forbid_unknown_fields=True):
    """As chat completions have it: `response_format`."""

    json_schema: _Schema


class FlatSchema(
    _Schema, tag="json_schema", tag_field="type", forbid_unknown_fields=True, kw_only=True
):
    """As responses have it: `text.format`."""


ResponseFormat = PlainText | JsonObject | JsonSchemaFormat
TextFormat = PlainText | JsonObject | FlatSchema


def parse_format(form: ResponseFormat | TextFormat | None, *, param: str) -> bool | str:
    """The value for `GenerationRequest.json`. Raises `RequestRejected`."""
    if form is None or isinstance(form, PlainText):
        return False
    if isinstance(form, JsonObject):
        return True
    schema = form.json_schema.schema if isinstance(form, JsonSchemaFormat) else form.schema
    try:
        return schema_text(schema)
    except UsageError as error:
        raise invalid(f"Invalid '{param}': {error}", param=param) from error
