"""Turns the arguments of `holdfast.run`, as people write them, into values.

People give dicts, addresses and paths. A wrong argument raises an error of one line that names the
argument. This happens before the engine is asked and before the run is recorded.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import TypeGuard

from holdfast.engine.connect import EngineAddress
from holdfast.engine.options import API_KEY
from holdfast.engine.settings import Settings
from holdfast.journal import check_address
from holdfast.policy.policy import Policy
from holdfast.policy.providers import PROVIDERS, key_of, meant_provider, names_of, provider_of
from holdfast.records.encoding.declared import as_declared, check_names, function_name
from holdfast.records.errors import UsageError
from holdfast.records.sampling import Sampling
from holdfast.rollout.validate import sampling_of


def sampling_from(value: "Sampling | Mapping[str, object] | None") -> Sampling | None:
    """Returns the given `Sampling`, or makes one from a dict of its fields. The values are those
    that `t.generate` takes."""
    if value is None or isinstance(value, Sampling):
        return value
    if not isinstance(value, Mapping):
        raise UsageError(f"sampling is a Sampling(…) or a dict, not {value!r:.100}")
    check_names(value, Sampling.__struct_fields__, "sampling has no")
    return sampling_of(Sampling(), **value)


def settings_from(
    value: "Settings | Mapping[str, object] | None", *, name: str = "settings"
) -> Settings | None:
    """Returns the given `Settings`, or makes one from a dict of its fields."""
    settings: Settings | None = as_declared(name, value, Settings | None)
    return settings


# --- the policy and the journal


def is_policy(value: object) -> TypeGuard[Policy]:
    """Returns whether the value is a policy object, not an address."""
    return _has(value, "check", "sample")


def address_of(
    policy: object,
    *,
    model: "str | PurePath | None" = None,
    api_key: str | None = None,
    needs_key: bool = True,
) -> EngineAddress:
    """Returns the address at which the policy is served.

    The embedded engine serves the policy if `policy` is None and `model` is not a provider's model.
    It then serves the folder `model`, or its default model if `model` is None. If `needs_key` is
    true, the key of a provider must be available now.
    """
    if model is not None and not isinstance(model, str | PurePath):
        raise UsageError(f"model is a name, or the path of a folder, not {model!r:.100}")
    name = None if model is None else str(model)
    if policy is None and (name is None or not is_hosted(name)):
        check_folder(name)
        return EngineAddress(folder=name)
    hosted = next((text for text in (policy, name) if is_hosted(text)), None)
    if hosted is not None and (policy is None or policy == hosted):
        return hosted_address(
            str(hosted), api_key=api_key, environment=os.environ, needs_key=needs_key
        )
    urls = engine_urls(policy, instead="a holdfast.EnginePolicy(URL, MODEL), or nothing")
    return EngineAddress(
        urls=urls,
        models=(name,) if name else (),
        api_key=api_key or os.environ.get(API_KEY),
        remedy="" if name else "name one with model=",
    )


def is_hosted(model: object) -> bool:
    """Returns whether the value names a provider's model (`openai/gpt-4o`) and no local folder."""
    return isinstance(model, str) and provider_of(model) is not None and not Path(model).is_dir()


def check_folder(model: str | None) -> None:
    """Raises `UsageError` if `model` does not exist as a folder and looks like a misspelt name of a
    provider's model."""
    if model is not None and not Path(model).exists() and (meant := meant_provider(model)):
        raise UsageError(f"model {model!r} is not a folder, and no provider's model{meant}")


def hosted_address(
    model: str,
    *,
    api_key: str | None,
    environment: Mapping[str, str],
    instead: str = "",
    needs_key: bool = True,
) -> EngineAddress:
    """Returns the address of a provider's model. Without `api_key`, reads the key from the
    provider's environment variable.
    """
    instead = instead or "name another engine with policy=URL"
    key = api_key
    if not key and needs_key:
        key = key_of(model, environment, instead=instead)
    return EngineAddress(
        urls=(PROVIDERS[str(provider_of(model))].url,),
        models=names_of(model),
        api_key=key,
        source=f"the model's prefix {provider_of(model)}/",
        remedy="give another name behind the provider's",
    )


def engine_urls(policy: object, *, instead: str = "a list of them, or nothing") -> tuple[str, ...]:
    """Returns the address of an engine, or the addresses of its replicas, as a tuple.

    `instead` completes the error message: it names the other values that the caller accepts.
    """
    listed = [policy] if isinstance(policy, str) else policy
    if not isinstance(listed, Sequence) or not listed:
        raise UsageError(
            f"policy is of type {type(policy).__name__}, and no policy; give the engine's address "
            f'("http://127.0.0.1:8000"), {instead} for the embedded engine'
        )
    for url in listed:
        if not isinstance(url, str):
            raise UsageError(f"policy: an address is a text, not {url!r:.100}")
        if not url.strip():
            raise UsageError(
                'policy is empty; give the engine\'s address ("http://127.0.0.1:8000")'
            )
        if Path(url).is_dir():
            raise UsageError(
                f"policy {url} is a folder; for the embedded engine, give model={url!r}"
            )
    return tuple(listed)


def check_journal(journal: object) -> None:
    """Raises `UsageError` if the value is neither a journal nor the address of a journal."""
    if isinstance(journal, str | Path):
        check_address(journal)
        if Path(journal).is_dir():
            raise UsageError(f"journal {journal} is a folder; name a file")
    elif not _has(journal, "find_run", "create_run"):
        raise UsageError(
            f"journal is of type {type(journal).__name__}, and no journal; give the path of a "
            "file, or holdfast.open_journal(PATH)"
        )


def _has(value: object, *methods: str) -> bool:
    return all(callable(getattr(value, method, None)) for method in methods)


# --- the name


def series_from(rollout: object, tasks: object) -> str:
    """Returns the name for runs that are given no name.

    The name joins the rollout and the file or function that the tasks come from. A task source
    called `tasks` is left out, because the word adds no information.
    """
    parts = [rollout if isinstance(rollout, str) else function_name(rollout)]
    if isinstance(tasks, str | PurePath):
        parts.append(_stem(str(tasks)))
    elif callable(tasks):
        parts.append(function_name(tasks))
    kept = [part for part in parts if part != "tasks"]
    return re.sub(r"[^\w.-]+", "-", "-".join(kept)).strip("-.")[:190] or "run"


def _stem(source: str) -> str:
    file, _, function = source.rpartition(".py:")
    if file:
        return f"{Path(file).name}-{function}"
    return source if source.startswith("hf:") else Path(source).stem
