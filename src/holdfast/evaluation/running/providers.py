"""The address of the policy of a setting: its own, by its model's name, or by a variable."""

from collections.abc import Mapping

from holdfast.engine.connect import EngineAddress
from holdfast.policy.providers import PROVIDERS, key_of, provider_of

KEY = "HOLDFAST_API_KEY"
POLICY = "HOLDFAST_POLICY"


def find_address(
    *,
    model: str | None,
    named: tuple[str, ...],
    base_url: str | None,
    api_key: str | None,
    environment: Mapping[str, str],
) -> EngineAddress | None:
    """`named` addresses go first, then the setting's own, the provider that the model's name begins
    with, and HOLDFAST_POLICY. None where there is no address: the embedded engine serves."""
    key = api_key or environment.get(KEY)
    if named:
        return EngineAddress(urls=named, api_key=key, source="--holdfast-policy")
    if base_url is not None:
        source = "the completion params' base_url"
        return EngineAddress(urls=(base_url,), api_key=key, source=source)
    if model is not None and (name := provider_of(model)) is not None:
        instead = "name another engine with --holdfast-policy URL"
        key = api_key or key_of(model, environment, instead=instead)
        source = f"the model's prefix {name}/"
        return EngineAddress(urls=(PROVIDERS[name].url,), api_key=key, source=source)
    if urls := environment.get(POLICY, "").split():
        return EngineAddress(urls=tuple(urls), api_key=key, source=POLICY)
    return None


def key_remedy(
    *,
    model: str | None,
    named: tuple[str, ...],
    base_url: str | None,
    api_key: str | None,
    environment: Mapping[str, str],
) -> str:
    """For an engine that answers 401: which key it was sent (see `find_address`), or where one is
    put."""
    sent = "it does not take the key that it was sent: that of"
    if api_key:
        return f"{sent} api_key in the completion_params"
    if not named and base_url is None and model is not None and (name := provider_of(model)):
        return f"{sent} {PROVIDERS[name].key}"
    if environment.get(KEY):
        return f"{sent} {KEY}; completion_params may have an api_key of their own"
    return f"it was sent no key: put it into {KEY}, or into the completion_params as api_key"
