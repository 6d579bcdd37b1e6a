"""How a model is run is settled before its engine takes requests: in shared passes, or alone."""

from msgspec.structs import replace

from holdfast.embedded import probe, solo_probe
from holdfast.embedded.folder import Model
from holdfast.embedded.passes import Passes
from holdfast.embedded.solo import SoloPasses


def passes(model: Model, *, slots: int) -> Passes | SoloPasses:
    """What the folder promises, not yet tried."""
    return SoloPasses(model, slots=slots) if model.solo else Passes(model, slots=slots)


def proved(model: Model, tried: Passes | SoloPasses) -> tuple[Model, Passes | SoloPasses]:
    """The same, tried; or the model marked to be run alone, and passes for that. Raises
    `UsageError` for what cannot be served in either way."""
    if isinstance(tried, Passes):
        try:
            probe.check(model, tried)
        except probe.Unfit as unfit:
            model.network.set_attn_implementation("eager")
            model = replace(model, why_solo=str(unfit))
            tried = SoloPasses(model, slots=tried.narrow)
        else:
            return model, tried
    tried.stride = solo_probe.check(model)
    return model, tried
