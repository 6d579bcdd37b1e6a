"""Providers are hosted engines, named by the first word of a model's name, as in `openai/gpt-4o`.

Runs, trainings, judges and evaluations share one table. Keys come only from the environment.
"""

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from msgspec import Struct

from holdfast.addresses import is_http_address
from holdfast.records.encoding.near_names import nearest
from holdfast.records.encoding.redaction import redact
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
"""The providers by name, including the names that LiteLLM uses."""
NEAR = 0.75
"""How similar a word must be to a provider's name for a suggestion."""


def provider_of(model: str | None) -> str | None:
    """Returns the provider at the beginning of the model's name, or None."""
    prefix, slash, rest = (model or "").partition("/")
    return prefix if slash and rest and prefix in PROVIDERS else None


def meant_provider(text: str) -> str:
    """Returns a hint for an error message if the text names a provider with a misspelling, such as
    `; is 'openai/gpt-4o' meant?`. Returns "" for other texts."""
    prefix, _, rest = text.partition("/")
    near = nearest(prefix.lower(), PROVIDERS, alike=NEAR)
    return f"; is '{near}/{rest or 'NAME'}' meant?" if near else ""


def unknown_provider(text: str) -> str:
    """Returns a hint for an error message if the text looks like the model of an unknown provider,
    such as `nosuch/model`. Returns "" for other texts."""
    prefix, slash, model = text.partition("/")
    is_name = prefix.replace("-", "").replace("_", "").isalnum()
    if not (slash and model and is_name) or prefix == "localhost":
        return ""
    return f"; no provider is called {prefix!r}: they are {', '.join(PROVIDERS)}"


def names_of(model: str | None) -> tuple[str, ...]:
    """Returns the names that an engine may have for the model: the full name, and the name without
    its prefix."""
    if not model:
        return ()
    prefix, slash, rest = model.partition("/")
    return (model, rest) if slash and prefix and rest else (model,)


def key_of(model: str, environment: Mapping[str, str], *, instead: str) -> str:
    """Returns the key of the model's provider. If its environment variable is not set, raises
    `UsageError` with the variable's name. `instead` is other advice for the error message."""
    provider = PROVIDERS[model.partition("/")[0]]
    if key := environment.get(provider.key):
        return key
    raise UsageError(
        f"model {model!r} is served by {provider.url}, which wants a key: set {provider.key}, or "
        f"{instead}"
    )


def base_url(url: str) -> str:
    """Returns the base address of an API, without a path `/v1`. Other paths stay. So an API has the
    same address whether or not `/v1` was given."""
    if not is_http_address(url):
        # An address with an @ may hold a password in an unknown format.
        address = "what was given" if "@" in url else repr(redact(url))
        is_host = re.fullmatch(r"[\w.-]+:\d+(/[\w/.-]*)?", url)
        meant = f"; is 'http://{url}' meant?" if is_host else meant_provider(url)
        raise UsageError(
            "an inference engine's address (--policy, from Python: policy=) looks like "
            f"http://127.0.0.1:8000, not {address}{meant or unknown_provider(url)}"
        )
    url = url.rstrip("/")
    return url.removesuffix("/v1") if urlsplit(url).path == "/v1" else url
