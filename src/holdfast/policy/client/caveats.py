"""Warns about the engine before a run samples anything."""

from holdfast.policy.client.replicas import EnginePolicy
from holdfast.policy.dialects.dialect import Seeds
from holdfast.records.samples.logprobs import PROCESSING, LogprobsMode, distribution_of, mode_with
from holdfast.records.sampling import Sampling


def caveats(
    policy: EnginePolicy, sampling: Sampling, *, seed: int | None, in_parts: bool
) -> list[str]:
    """Returns a line for each caveat of a checked policy. `in_parts` says that replies become
    durable in parts."""
    if not policy.has_tokens:
        return []
    name = policy.endpoints[0].name
    lines = [_about_logprobs(name, policy.logprobs_mode, sampling)]
    if seed is not None:
        lines.append(_about_seeds(name, policy.seeds, in_parts=in_parts))
    return [line for line in lines if line]


def _about_logprobs(name: str, engine: LogprobsMode, sampling: Sampling) -> str:
    """Returns the caveat about the engine's logprobs, or "" if there is none. Greedy replies have
    no caveat, because no engine option would change their logprobs."""
    mode = mode_with(engine, sampling)
    if mode is LogprobsMode.PROCESSED or not sampling.temperature:
        return ""
    at = f"at {distribution_of(sampling)}"
    if mode is LogprobsMode.UNKNOWN:
        return (
            f"of which distribution the logprobs of {name} are could not be measured; {at} they "
            "may not be of the one that is sampled from: samples will say unknown"
        )
    remedy = "sample uncut" if mode is LogprobsMode.TEMPERED else f"start it so ({PROCESSING})"
    return (
        f"the logprobs of {name} are {mode}: {at} they are not of the distribution that is sampled "
        f"from. Good for evaluation; `export --what samples` refuses them: to train, {remedy}"
    )


def _about_seeds(name: str, seeds: Seeds, *, in_parts: bool) -> str:
    if seeds is Seeds.NONE:
        return (
            f"{name} takes no seeds: what is sampled cannot be repeated (SGLang: "
            "--enable-deterministic-inference)"
        )
    if seeds is Seeds.POSITION or not in_parts:
        return ""
    return (
        f"seeds of {name} hold for whole requests: a reply that is interrupted goes on from its "
        "durable tokens, and is not the one of an undisturbed run (without --partial-tokens, and "
        "without streams to agents, it is)"
    )
