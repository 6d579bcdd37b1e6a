"""Providers: hosted engines that go by the first word of a model's name, as in `openai/gpt-4o`.

One table for runs, trainings, judges and evaluations. Keys come from the environment alone.
"""

from collections.abc import Mapping

from msgspec import Struct

from holdfast.records.encoding.near_names import nearest
from holdfast.records.errors import UsageError


class Provider(Struct, frozen=True):
    url: str
    key: str
    """The environment variable that holds the key."""


_FIREWORKS = Provider("https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY")
_TOGETHER = Provider("https://api.together.xyz", "TOGETHER_API_KEY")
PROVIDERS: Mapping[str, Provider] = {
    "openai": Provider("https://api.openai.com", "OPENAI_API_KEY"),
    "anthropic": Provider("https://api.anthropic.com", "ANTHROPIC_API_KEY"),
    "fireworks": _FIREWORKS,
    "fireworks_ai": _FIREWORKS,
    "openrouter": Provider("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    "together": _TOGETHER,
    "together_ai": _TOGETHER,
    "groq": Provider("https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    "deepseek": Provider("https://api.deepseek.com", "DEEPSEEK_API_KEY"),
}
"""The names of LiteLLM are understood, too."""
NEAR = 0.75
"""How similar a word must be to a provider's name for a suggestion."""


def provider_of(model: str | None) -> str | None:
    """The provider that the model's name begins with."""
    prefix, slash, rest = (model or "").partition("/")
    return prefix if slash and rest and prefix in PROVIDERS else None


def meant_provider(text: str) -> str:
    """`; is 'openai/gpt-4o' meant?` for a misspelled provider; "" for anything else."""
    prefix, _, rest = text.partition("/")
    near = nearest(prefix.lower(), PROVIDERS, alike=NEAR)
    return f"; is '{near}/{rest or 'NAME'}' meant?" if near else ""


def unknown_provider(text: str) -> str:
    """What is wrong with `nosuch/model`, which looks like a provider's model; "" for other
    names."""
    prefix, slash, model = text.partition("/")
    is_name = prefix.replace("-", "").replace("_", "").isalnum()
    if not (slash and model and is_name) or prefix == "localhost":
        return ""
    return f"; no provider is called {prefix!r}: they are {', '.join(PROVIDERS)}"


def names_of(model: str | None) -> tuple[str, ...]:
    """The names that an engine may have for the model: as it is written, or without its prefix."""
    if not model:
        return ()
    prefix, slash, rest = model.partition("/")
    return (model, rest) if slash and prefix and rest else (model,)


def key_of(model: str, environment: Mapping[str, str], *, instead: str) -> str:
    """The key of the model's provider; `UsageError` with the variable that is to hold it."""
    provider = PROVIDERS[model.partition("/")[0]]
    if key := environment.get(provider.key):
        return key
    raise UsageError(
        f"model {model!r} is served by {provider.url}, which wants a key: set {provider.key}, or "
        f"{instead}"
    )
