"""The model that a command or a call means, before it has a connection to an engine.

Which model answers is part of what makes two runs the same. So a recorded run is continued, or
handed back, only if its model is the one that is meant.
"""

from pathlib import Path

from msgspec import Struct

from holdfast.embedded.model.files import TINY
from holdfast.engine.connect import EngineAddress, find_model
from holdfast.records.errors import EndpointDown
from holdfast.records.run import RunSpec


class Meant(Struct, frozen=True):
    """The names that the model may have, and the name of the renderer."""

    models: tuple[str, ...] | None = ()
    """None means any model, because the engine that knows the name does not answer."""
    renderer: str | None = None
    """None means any renderer."""
    unanswered: str = ""
    """The error of an engine that does not answer."""

    def accepts(self, recorded: RunSpec) -> bool:
        if self.models is not None and recorded.model not in self.models:
            return False
        return self.renderer in (None, recorded.renderer)

    def caveat(self, recorded: RunSpec) -> str:
        """Returns a line for the user if the engine could not be asked for its model, or ""."""
        if not self.unanswered:
            return ""
        return (
            f"{self.unanswered}. The samples of run {recorded.name!r} are from model "
            f"{recorded.model!r}; whether the policy serves it is not known"
        )


async def find_meant(address: EngineAddress, renderer: str | None) -> Meant:
    """Returns the model that the address means. Asks the engine if no model is named, and starts no
    engine. Raises `UsageError` if the engine serves several models."""
    if not address.urls:
        return Meant((Path(address.folder or TINY).resolve().name,), renderer)
    if address.models:
        return Meant(address.models, renderer)
    try:
        return Meant((await find_model(address, address.urls, ()),), renderer)
    except EndpointDown as error:
        return Meant(None, renderer, str(error))
