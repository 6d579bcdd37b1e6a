"""Connection: the policy that a setting is sampled from, and the renderer of its model.

Found, asked what it serves, and checked before anything is recorded; closed afterwards.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from msgspec import Struct

from holdfast.evaluation.definition.completion_params import Setting
from holdfast.evaluation.processors.basic import NoPolicy
from holdfast.evaluation.running.providers import PROVIDERS, ProviderAddress, address_of, names_of
from holdfast.evaluation.running.session import EvaluationSession
from holdfast.policy.policy import Policy
from holdfast.policy.rendering.messages_only import MessagesOnly
from holdfast.policy.rendering.renderer import Renderer
from holdfast.records.errors import UsageError

if TYPE_CHECKING:
    from holdfast.policy.client.replicas import EnginePolicy


EMBEDDED = "tiny"
"""The name of the embedded engine's own model."""


class EvaluationConnection(Struct, frozen=True):
    policy: Policy
    renderer: Renderer


@asynccontextmanager
async def connected(
    setting: Setting,
    session: EvaluationSession,
    *,
    policy: "Policy | str | Sequence[str] | None" = None,
    renderer: Renderer | None = None,
    needed: bool = True,
) -> AsyncIterator[EvaluationConnection]:
    """`policy`: an address, several, or a policy of the caller's own, which stays open. Where it is
    not `needed`, since the processor may ask somebody else, that there is none is said by the
    first row that asks."""
    async with AsyncExitStack() as stack:
        try:
            found = await stack.enter_async_context(
                _connected(setting, session, policy=policy, renderer=renderer)
            )
        except UsageError as error:
            if needed:
                raise
            found = EvaluationConnection(NoPolicy(setting.model or "", error), MessagesOnly())
        yield found


@asynccontextmanager
async def _connected(
    setting: Setting,
    session: EvaluationSession,
    *,
    policy: "Policy | str | Sequence[str] | None",
    renderer: Renderer | None,
) -> AsyncIterator[EvaluationConnection]:
    urls = addresses(policy)
    if policy is not None and urls is None:
        assert not isinstance(policy, str | Sequence), "it is no address"
        await policy.check()
        _require(setting.model, (policy.model,), "the policy that was given")
        yield EvaluationConnection(policy, renderer or _renderer(policy))
        return
    address = address_of(
        model=setting.model,
        given=tuple(session.options.policy or urls or ()),
        base_url=setting.base_url,
        api_key=setting.api_key,
        environment=os.environ,
    )
    if address is not None:
        async with _opened(setting, address, session) as found:
            yield EvaluationConnection(found, renderer or _renderer(found))
        return
    _check_embedded(setting)
    async with session.embedded(_folder(setting)) as engine:
        address = ProviderAddress(
            (engine.url,), None, "the embedded engine, since no policy is named"
        )
        async with _opened(setting, address, session, embedded=engine.model) as found:
            yield EvaluationConnection(found, renderer or _renderer(found))


def addresses(policy: "Policy | str | Sequence[str] | None") -> tuple[str, ...] | None:
    """None where it is no address."""
    if isinstance(policy, str):
        return (policy,)
    if isinstance(policy, Sequence):
        return tuple(policy)
    return None


def _folder(setting: Setting) -> str | None:
    """The embedded engine serves any model that lies in a folder."""
    return setting.model if setting.model and os.path.isdir(setting.model) else None


def _check_embedded(setting: Setting) -> None:
    """It is started for a model that lies in a folder, or for its own: others are elsewhere."""
    model = setting.model
    if model is None or _folder(setting) or EMBEDDED in names_of(model):
        return
    prefix, slash, _ = model.partition("/")
    unknown = f", and {prefix!r} is no provider ({', '.join(PROVIDERS)} are)" if slash else ""
    raise UsageError(
        f"no engine is named for model {model!r}{unknown}: name one with --holdfast-policy URL, or "
        "as base_url in the completion params"
    )


@asynccontextmanager
async def _opened(
    setting: Setting,
    address: ProviderAddress,
    session: EvaluationSession,
    *,
    embedded: str | None = None,
) -> "AsyncIterator[EnginePolicy]":
    from holdfast.policy.client.replicas import EnginePolicy

    asked = EnginePolicy(address.urls, "", api_key=address.api_key)
    try:
        model = await _model(asked, setting, address, embedded=embedded)
    finally:
        await asked.aclose()
    policy = EnginePolicy(address.urls, model, api_key=address.api_key, tell=session.tell)
    try:
        await policy.check()
        yield policy
    finally:
        await policy.aclose()


async def _model(
    asked: "EnginePolicy", setting: Setting, address: ProviderAddress, *, embedded: str | None
) -> str:
    """The name by which the engine knows the setting's model."""
    from holdfast.policy.client.discovery import served_models

    if embedded is not None and (setting.model is None or _folder(setting)):
        return embedded
    found = await asyncio.gather(
        *(served_models(one) for one in asked.endpoints), return_exceptions=True
    )
    listed = [one for one in found if not isinstance(one, BaseException)]
    if not listed:
        assert isinstance(found[0], BaseException), "none of them answered"
        raise found[0]
    served = tuple(one.id for one in listed[0])
    where = f"{asked.endpoints[0].name} ({address.source})"
    if setting.model is not None:
        return _require(setting.model, served, where)
    if len(served) == 1:
        return served[0]
    raise UsageError(
        f"{where} serves {', '.join(served) or 'none'}: name one as 'model' in the completion "
        "params, or with --holdfast-input-param model=NAME"
    )


def _require(model: str | None, served: Sequence[str], where: str) -> str:
    for name in names_of(model) if model else served[:1]:
        if name in served:
            return name
    raise UsageError(
        f"{where} does not serve model {model!r}; it serves: {', '.join(served) or 'none'}. Name "
        "another model in the completion params, or another engine with --holdfast-policy URL"
    )


def _renderer(policy: Policy) -> Renderer:
    from holdfast.policy.rendering.select import renderer_of

    return renderer_of(policy)
