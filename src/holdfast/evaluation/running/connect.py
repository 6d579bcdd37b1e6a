"""Connects to the policy that a setting is sampled from."""

import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

from msgspec import structs

from holdfast.engine.arguments import hosted_address
from holdfast.engine.connect import (
    Connection,
    EngineAddress,
    choose_model,
    connect,
    connect_policy,
)
from holdfast.engine.options import API_KEY
from holdfast.evaluation.rows.completion_params import Setting
from holdfast.evaluation.running.session import EvaluationSession
from holdfast.policy.client.endpoint import Denied
from holdfast.policy.dialects.dialect import Kind
from holdfast.policy.policy import NoPolicy, Policy
from holdfast.policy.providers import PROVIDERS, meant_provider, names_of, provider_of
from holdfast.policy.rendering.messages_only import MessagesOnly
from holdfast.policy.rendering.renderer import Renderer
from holdfast.policy.rendering.select import NoTokenizer
from holdfast.records.errors import UsageError

POLICY = "HOLDFAST_POLICY"
EMBEDDED_MODEL = "tiny"
"""The name of the embedded engine's own model."""
EMBEDDED = EngineAddress(source="the embedded engine, since no policy is named")
REMEDY = (
    "name it as 'model' in the completion params or with --holdfast-input-param model=NAME, or "
    "name another engine with --holdfast-policy URL"
)


@asynccontextmanager
async def connect_setting(
    setting: Setting,
    session: EvaluationSession,
    *,
    policy: "Policy | str | Sequence[str] | None" = None,
    renderer: Renderer | None = None,
    needed: bool = True,
) -> AsyncIterator[Connection]:
    """Connects to the policy of a setting.

    `policy` is an address, several addresses, or an open policy of the caller. `needed` is False if
    the processor may use an engine of its own. A missing policy then fails only the rows that
    sample.
    """
    async with AsyncExitStack() as stack:
        stack.enter_context(_naming_key(setting, tuple(session.options.policy or ()), policy))
        try:
            connection = await stack.enter_async_context(
                _connect(setting, session, policy, renderer)
            )
        except UsageError as error:
            if needed:
                raise
            connection = Connection(NoPolicy(setting.model or "", error), MessagesOnly())
        yield connection


@contextmanager
def _naming_key(
    setting: Setting, named: tuple[str, ...], policy: "Policy | str | Sequence[str] | None"
) -> Iterator[None]:
    """If an engine rejects the API key, adds to the error where an evaluation takes its API key
    from."""
    urls = addresses(policy)
    try:
        yield
    except Denied as error:
        # The key of an open policy does not come from these settings. A judge's refusal names its
        # own remedy.
        is_ours = (policy is None or urls is not None) and str(error).startswith(error.answered)
        if is_ours and error.status in (401, 403):
            remedy = key_remedy(setting, named or tuple(urls or ()), os.environ)
            error.args = (f"{error.answered}; {remedy}",)
        raise


@asynccontextmanager
async def _connect(
    setting: Setting,
    session: EvaluationSession,
    policy: "Policy | str | Sequence[str] | None",
    renderer: Renderer | None,
) -> AsyncIterator[Connection]:
    urls = addresses(policy)
    if policy is not None and urls is None:
        assert not isinstance(policy, str | Sequence), "it is not an address"
        where, names = "the policy that was given", names_of(setting.model)
        connection = await connect_policy(policy, renderer)
        choose_model(names, (policy.model,), where=where, remedy=REMEDY)
        yield connection
        return
    address = find_address(setting, tuple(session.options.policy or urls or ()), os.environ)
    if address is None:
        _check_embedded(setting)
        address = structs.replace(EMBEDDED, folder=_folder(setting))
    models = () if address.folder else names_of(setting.model)
    address = structs.replace(address, models=models, remedy=REMEDY)
    if session.options.patience is not None:
        address = structs.replace(address, patience=session.options.patience)
    async with AsyncExitStack() as stack:
        yield await _enter(stack, address, session, renderer)


async def _enter(
    stack: AsyncExitStack,
    address: EngineAddress,
    session: EvaluationSession,
    renderer: Renderer | None,
) -> Connection:
    """Connects to the engine. If the tokenizer of its model is not available here, uses the
    engine's chat API. Rows then have no token ids."""

    async def enter(address: EngineAddress) -> Connection:
        return await stack.enter_async_context(
            connect(address, engines=session.engines, notify=session.notify, renderer=renderer)
        )

    try:
        return await enter(address)
    except NoTokenizer:
        connection = await enter(structs.replace(address, dialect=Kind.CHAT.value))
        session.notify(
            f"the tokenizer of {connection.policy.model!r} is not here: its engine is asked by "
            "chat, and rows have no token ids"
        )
        return connection


def addresses(policy: "Policy | str | Sequence[str] | None") -> tuple[str, ...] | None:
    """Returns the addresses, or None if `policy` is not an address."""
    if isinstance(policy, str):
        return (policy,)
    if isinstance(policy, Sequence):
        return tuple(policy)
    return None


def _folder(setting: Setting) -> str | None:
    """Returns the setting's model if it is a folder, and None otherwise. The embedded engine serves
    any model in a folder."""
    return setting.model if setting.model and os.path.isdir(setting.model) else None


def _check_embedded(setting: Setting) -> None:
    """Raises `UsageError` unless the model is in a folder or is the embedded engine's own, because
    the embedded engine has no other models."""
    model = setting.model
    if model is None or _folder(setting) or EMBEDDED_MODEL in names_of(model):
        return
    prefix, slash, _ = model.partition("/")
    unknown = f", and {prefix!r} is not a provider ({', '.join(PROVIDERS)} are)" if slash else ""
    if meant := slash and meant_provider(model):
        unknown = f", and {prefix!r} is not a provider{meant} Otherwise"
    raise UsageError(
        f"no engine is named for model {model!r}{unknown}: name one with --holdfast-policy URL, or "
        "as base_url in the completion params"
    )


# --- the address of the policy


def find_address(
    setting: Setting, named: tuple[str, ...], environment: Mapping[str, str]
) -> EngineAddress | None:
    """Returns the engine's address. `named` addresses come first, then the setting's, the provider
    in the model's name, and HOLDFAST_POLICY. None means the embedded engine."""
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
    """Returns advice for an engine that answers 401 or 403: which key it received (see
    `find_address`), or where to set a key."""
    sent = "it does not take the key that it was sent: that of"
    provider = None if setting.model is None else provider_of(setting.model)
    if setting.api_key:
        return f"{sent} api_key in the completion_params"
    if not named and setting.base_url is None and provider is not None:
        return f"{sent} {PROVIDERS[provider].key}"
    if environment.get(API_KEY):
        return f"{sent} {API_KEY}; completion_params may have an api_key of their own"
    return f"it was sent no key: put it into {API_KEY}, or into the completion_params as api_key"
