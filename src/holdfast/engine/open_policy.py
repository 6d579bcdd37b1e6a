"""Opens a policy for the duration of a block, by its address or as the embedded engine.

Messages for people (a replica is down, or back) go to the logger `holdfast`.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import PurePath

from holdfast.engine.arguments import address_of
from holdfast.engine.connect import Connection, EmbeddedEngines, EngineAddress, connect
from holdfast.policy.policy import Policy
from holdfast.policy.rendering.renderer import Renderer
from holdfast.records.encoding.declared import checks_arguments
from holdfast.records.errors import HoldfastError
from holdfast.records.failure import for_caller

LOG = logging.getLogger("holdfast")


@checks_arguments(own="where model")
@asynccontextmanager
async def open_policy(
    where: "str | Sequence[str] | None" = None,
    *,
    model: "str | PurePath | None" = None,
    api_key: str | None = None,
) -> AsyncIterator[Policy]:
    """Opens a policy that several runs may share, and closes it at the end of the block.

    `where` is the address of an engine, or the addresses of its replicas. Without `where`, the
    embedded engine is started and stopped here. `model` and `api_key` are as in `holdfast.run`.
    """
    async with AsyncExitStack() as stack:
        engine = connected(address_of(where, model=model, api_key=api_key))
        try:
            connection = await stack.enter_async_context(engine)
        except HoldfastError as error:
            raise for_caller(error)  # noqa: B904 - it is the same error
        yield connection.policy


@asynccontextmanager
async def connected(
    address: EngineAddress, renderer: Renderer | None = None
) -> AsyncIterator[Connection]:
    """Connects to the address. An embedded engine that is started for it is closed at the end of
    the block.
    """
    engines = EmbeddedEngines(LOG.warning, quiet=True)
    if not address.urls:
        LOG.info("no policy is named: starting the embedded engine")
    try:
        async with connect(
            address, engines=engines, notify=LOG.warning, renderer=renderer
        ) as connection:
            yield connection
    finally:
        await asyncio.to_thread(engines.close)
