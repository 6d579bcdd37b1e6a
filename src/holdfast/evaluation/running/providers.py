"""Providers: hosted engines that go by the first word of a model's name, as in `openai/gpt-4o`."""

from collections.abc import Mapping

from msgspec import Struct

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


class ProviderAddress(Struct, frozen=True):
    """Where a setting's model is served."""

    urls: tuple[str, ...]
    api_key: str | None
    source: str
    """Who says so, for people."""

    def __repr__(self) -> str:
        return f"Address({self.urls!r}, {self.source!r})"


def address_of(
    *,
    model: str | None,
    given: tuple[str, ...],
    base_url: str | None,
    api_key: str | None,
    environment: Mapping[str, str],
) -> ProviderAddress | None:
    """`given` goes first, then the setting's own address, the provider that its model's name
    begins with, and HOLDFAST_POLICY. None: nobody names one, and the embedded engine serves."""
    key = api_key or environment.get(KEY)
    if given:
        return ProviderAddress(given, key, "--holdfast-policy")
    if base_url is not None:
        return ProviderAddress((base_url,), key, "the completion params' base_url")
    if (name := provider_of(model)) is not None:
        provider = PROVIDERS[name]
        key = api_key or environment.get(provider.key)
        if not key:
            raise UsageError(
                f"model {model!r} is served by {provider.url}, which wants a key: set "
                f"{provider.key}, or name another engine with --holdfast-policy URL"
            )
        return ProviderAddress((provider.url,), key, f"the model's prefix {name}/")
    if named := environment.get(POLICY, "").split():
        return ProviderAddress(tuple(named), key, POLICY)
    return None


def provider_of(model: str | None) -> str | None:
    prefix, slash, rest = (model or "").partition("/")
    return prefix if slash and rest and prefix in PROVIDERS else None


def names_of(model: str) -> tuple[str, ...]:
    """What an engine may call the model: as it is written, or without the first word."""
    prefix, slash, rest = model.partition("/")
    return (model, rest) if slash and prefix and rest else (model,)
