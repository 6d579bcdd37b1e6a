"""The address of the policy of a setting: its own, by its model's name, or by a variable."""

from collections.abc import Mapping

from holdfast.engine.arguments import hosted_address
from holdfast.engine.connect import EngineAddress
from holdfast.engine.options import API_KEY
from holdfast.evaluation.rows.completion_params import Setting
from holdfast.policy.providers import PROVIDERS, provider_of

POLICY = "HOLDFAST_POLICY"


def find_address(
    setting: Setting, named: tuple[str, ...], environment: Mapping[str, str]
) -> EngineAddress | None:
    """`named` addresses go first, then the setting's own, the provider that the model's name begins
    with, and HOLDFAST_POLICY. None where there is no address: the embedded engine serves."""
    key = setting.api_key or environment.get(API_KEY)
    if named:
        return EngineAddress(urls=named, api_key=key, source="--holdfast-policy")
    if setting.base_url is not None:
        source = "the completion params' base_url"
        return EngineAddress(urls=(setting.base_url,), api_key=key, source=source)
    if setting.model is not None and provider_of(setting.model) is not None:
        return hosted_address(
            setting.model,
            api_key=setting.api_key,
            environment=environment,
            instead="name another engine with --holdfast-policy URL",
        )
    if urls := environment.get(POLICY, "").split():
        return EngineAddress(urls=tuple(urls), api_key=key, source=POLICY)
    return None


def key_remedy(setting: Setting, named: tuple[str, ...], environment: Mapping[str, str]) -> str:
    """For an engine that answers 401: which key it was sent (see `find_address`), or where one is
    put."""
    sent = "it does not take the key that it was sent: that of"
    provider = None if setting.model is None else provider_of(setting.model)
    if setting.api_key:
        return f"{sent} api_key in the completion_params"
    if not named and setting.base_url is None and provider is not None:
        return f"{sent} {PROVIDERS[provider].key}"
    if environment.get(API_KEY):
        return f"{sent} {API_KEY}; completion_params may have an api_key of their own"
    return f"it was sent no key: put it into {API_KEY}, or into the completion_params as api_key"
