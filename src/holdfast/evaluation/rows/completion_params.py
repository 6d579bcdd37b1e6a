"""A Setting holds the values that were read from one set of completion params.

Params have the names that chat APIs use. An unknown param that could change what is sampled raises
an error with its name. A param that does not affect sampling is ignored. A key is removed before
anything is recorded.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct, structs

from holdfast.records.encoding.redaction import redact
from holdfast.records.errors import UsageError
from holdfast.records.sampling import Sampling, json_of
from holdfast.rollout.processors.training import flatten, read_params

_SHORT = 40
_ADDRESSES = frozenset({"base_url", "api_base"})
_ALIASES = {"max_completion_tokens": "max_tokens"}


class Setting(Struct, frozen=True):
    """The values that one set of completion params asks for."""

    params: Mapping[str, object] = {}
    """The params as they were given, without the key and other secrets."""
    model: str | None = None
    base_url: str | None = None
    samples: int | None = None
    sampling: Sampling = Sampling()
    api_key: str | None = None

    def __repr__(self) -> str:
        return f"Setting({dict(self.params)!r})"


def setting_of(
    params: Mapping[str, object] | None, overrides: Mapping[str, object] | None = None
) -> Setting:
    """Reads completion params, with `overrides` in place of params of the same name. Raises
    `UsageError`, with the param's name, for an unknown or invalid param."""
    merged = _flat(params or {}) | _flat(overrides or {})
    key = merged.pop("api_key", None)
    if key is not None and not isinstance(key, str):
        raise UsageError("completion_params: api_key is a string")
    rest = dict(merged)
    effort, response_format = rest.pop("reasoning_effort", None), rest.pop("response_format", None)
    try:
        params_read = read_params(rest)
    except ValueError as error:
        raise UsageError(str(error)) from error
    sampling = structs.replace(Sampling(), **params_read.changes)
    if effort is not None:
        sampling = structs.replace(sampling, reasoning_effort=str(effort))
    if response_format is not None:
        sampling = structs.replace(sampling, json=json_of(response_format))
    return Setting(
        _without_secrets(merged),
        params_read.model,
        params_read.base_url,
        params_read.n,
        sampling,
        key,
    )


def _without_secrets(params: dict[str, object]) -> dict[str, object]:
    """Returns the params without the passwords in addresses, which must not be shown or
    recorded."""
    return {
        name: redact(value) if name in _ADDRESSES and isinstance(value, str) else value
        for name, value in params.items()
    }


def _flat(params: Mapping[str, object]) -> dict[str, object]:
    """Returns the params by Holdfast's names, including the params in `extra_body`; None counts as
    absent."""
    if not isinstance(params, Mapping):
        raise UsageError(f"completion params are an object, not {params!r:.200}")
    try:
        flat = flatten(_renamed(params), where="completion_params")
    except ValueError as error:
        raise UsageError(str(error)) from error
    return flat


def _renamed(params: Mapping[str, object]) -> dict[str, object]:
    renamed = {_ALIASES.get(str(name), str(name)): value for name, value in params.items()}
    if isinstance(extra := renamed.get("extra_body"), Mapping):
        renamed["extra_body"] = {_ALIASES.get(str(n), str(n)): value for n, value in extra.items()}
    return renamed


def ids_of(settings: Sequence[Setting]) -> list[str]:
    """Returns readable, distinct names of the settings: the model, and the params in which they
    differ."""
    differing = [
        name
        for name in sorted({name for setting in settings for name in setting.params} - {"model"})
        if len({_format_value(setting.params.get(name)) for setting in settings}) > 1
    ]
    ids = [
        ",".join(
            [
                *([setting.model.rpartition("/")[2] or setting.model] if setting.model else []),
                *(
                    f"{name}={_format_value(setting.params[name])}"
                    for name in differing
                    if name in setting.params
                ),
            ]
        )
        or "default"
        for setting in settings
    ]
    if len(set(ids)) == len(ids):
        return ids
    return [f"{name}#{number}" if ids.count(name) > 1 else name for number, name in enumerate(ids)]


def _format_value(value: object) -> str:
    text = str(value).replace("/", "_").replace("[", "(").replace("]", ")")
    return text if len(text) <= _SHORT else f"{text[:_SHORT]}…"
