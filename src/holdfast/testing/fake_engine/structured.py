"""What a reply is kept to, as vLLM's requests say it."""

import msgspec
from msgspec import Struct

from holdfast.testing.fake_engine import errors as refusals
from holdfast.testing.fake_engine.json_output import ANY, checked, tags
from holdfast.testing.fake_engine.request import decoded

_schemas = msgspec.json.Decoder(dict[str, object])


class StructuredOutputs(Struct, frozen=True):
    json: dict[str, object] | str | None = None
    json_object: bool | None = None
    structural_tag: str | None = None

    def wanted(self) -> dict[str, object]:
        given = [self.json, self.json_object, self.structural_tag]
        if sum(one is not None for one in given) != 1:
            kinds = "one kind of structured outputs constraint"
            many = "none" if given == [None, None, None] else "multiple"
            raise refusals.FakeRequestRejected(
                400, f"You must use {kinds} but {many} are specified"
            )
        if self.structural_tag is not None:
            return tags(self.structural_tag)
        if self.json is None:
            return ANY
        schema = self.json
        if isinstance(schema, str):
            schema = decoded(_schemas, schema.encode())
        return checked(schema)
