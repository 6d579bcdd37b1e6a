"""Providers: hosted engines that go by the first word of a model's name, as in `openai/gpt-4o`."""

from collections.abc import Mapping

from msgspec import Struct

from holdfast.engine.connect import EngineAddress
from holdfast.records.errors import UsageError

KEY = "HOLDFAST_API_KEY"
POLICY = "HOLDFAST_POLICY"


class Provider(Struct, frozen=True):
    url: str
    key: str
    """The environment variable that holds the key."""


PROVIDERS: Mapping[str, Provider] = {
    "openai": Provider("https://api.openai.com", "OPENAI_API_KEY"),
    "fireworks_ai": Provider("https://api.fireworks.ai/inference", "FIREWORKS_API_KEY"),
    "openrouter": Provider("https://openrouter.ai/api", "OPENROUTER_API_KEY"),
    "together_ai": Provider("https://api.together.xyz", "TOGETHER_API_KEY"),
    "groq": Provider("https://api.groq.com/openai", "GROQ_API_KEY"),
    "deepseek": Provider("https://api.deepseek.com", "DEEPSEEK_API_KEY"),
}


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
    if (name := provider_of(model)) is not None:
        provider = PROVIDERS[name]
        key = api_key or environment.get(provider.key)
        if not key:
            raise UsageError(
                f"model {model!r} is served by {provider.url}, which wants a key: set "
                f"{provider.key}, or name another engine with --holdfast-policy URL"
            )
        source = f"the model's prefix {name}/"
        return EngineAddress(urls=(provider.url,), api_key=key, source=source)
    if urls := environment.get(POLICY, "").split():
        return EngineAddress(urls=tuple(urls), api_key=key, source=POLICY)
    return None


def provider_of(model: str | None) -> str | None:
    prefix, slash, rest = (model or "").partition("/")
    return prefix if slash and rest and prefix in PROVIDERS else None


def names_of(model: str | None) -> tuple[str, ...]:
    """The names that an engine may have for the model: as it is written, or without its prefix."""
    if not model:
        return ()
    prefix, slash, rest = model.partition("/")
    return (model, rest) if slash and prefix and rest else (model,)
