"""Clients of inference engines that rows name, in addition to the run's own policy.

All rows share one client for each (endpoint, model). The client is checked once, before its first
request, so that recorded steps replay even if the engine is gone. The owner of the clients closes
all of them, even if closing one fails.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from holdfast.policy.policy import Completion, Policy, Request, WrappedPolicy
from holdfast.policy.retry import RetryPolicy
from holdfast.records.errors import (
    BadRequest,
    EndpointDown,
    PolicyRefused,
    RowEndpointDown,
    UsageError,
)

if TYPE_CHECKING:
    from holdfast.policy.client.replicas import EnginePolicy


CHECK_AGAIN_SECONDS = 1.0


class Client(WrappedPolicy):
    """A policy that is checked once, before its first request."""

    def __init__(self, policy: "EnginePolicy"):
        super().__init__(policy)
        self.policy = policy
        self._checking = asyncio.Lock()
        self._finding = asyncio.Lock()
        self._checked = False
        self._gone: EndpointDown | None = None

    async def check(self) -> None:
        async with self._checking:
            if not self._checked:
                await self.policy.check()
                self._checked = True

    async def wait_found(self) -> None:
        """Waits until the engine can be reached, and checks it. Raises `EndpointDown` if the engine
        is still down after the policy's patience. Concurrent callers wait together, and later
        callers get the same error."""
        async with self._finding:
            started = time.monotonic()
            while not self._checked and self._gone is None:
                try:
                    await self.check()
                except EndpointDown as error:
                    if time.monotonic() - started > self.policy.patience:
                        self._gone = error
                    else:
                        await asyncio.sleep(CHECK_AGAIN_SECONDS)
        if self._gone is not None:
            raise self._gone

    async def sample(self, request: Request) -> Completion:
        await self.check()
        # Engines without token ids get messages. The others get tokens.
        if self.policy.has_tokens == bool(request.messages):
            what = "takes tokens" if self.policy.has_tokens else "gives no token ids"
            raise UsageError(
                f"{self.policy.endpoints[0].name} {what}, and the run's renderer is made for the "
                "other kind; give the processor a renderer for it"
            )
        return await self.policy.sample(request)

    def for_rows(self) -> "RowClient":
        return RowClient(self)


class RowClient(WrappedPolicy):
    """A client for rows that name their own engine. If the engine is down or refuses a request, the
    rows fail, but the run does not."""

    def __init__(self, client: Client):
        super().__init__(client)
        self._client = client

    async def sample(self, request: Request) -> Completion:
        try:
            await self._client.wait_found()
            return await self._client.sample(request)
        except PolicyRefused as error:
            raise BadRequest(str(error)) from error
        except EndpointDown as error:
            raise RowEndpointDown(str(error)) from error


class ClientCache:
    """All clients by their (addresses, model)."""

    def __init__(
        self,
        *,
        api_keys: Mapping[str, str] | None = None,
        retry: RetryPolicy | None = None,
        patience: float | None = None,
    ):
        self._api_keys = dict(api_keys or {})
        self._retry = retry
        self._patience = patience
        self._open: dict[tuple[tuple[str, ...], str], Client] = {}

    def client_for(self, own: Policy, urls: Sequence[str] | None, model: str) -> Client | None:
        """Returns the client for `model` at `urls`. Without `urls`, the addresses are those of
        `own`, the run's policy. Returns None if the run's policy itself serves this model at these
        addresses."""
        if urls is None and model == own.model:
            return None
        from holdfast.policy.client.replicas import EnginePolicy
        from holdfast.policy.providers import base_url

        own_urls = (
            [endpoint.url for endpoint in own.endpoints] if isinstance(own, EnginePolicy) else []
        )
        if model == own.model and all(base_url(url) in own_urls for url in urls or ()):
            return None
        if urls is None and not own_urls:
            raise ValueError(
                f"model {model!r} is not the run's ({own.model!r}), and the run's policy has no "
                "address to look for it; give 'base_url'"
            )
        return self.get(own_urls if urls is None else urls, model, own=own)

    def get(self, urls: Sequence[str], model: str, *, own: Policy | None = None) -> Client:
        """Returns the client of these addresses and this model, and creates it at the first call.
        Patience, retries and other settings that this cache was not given are taken from `own`, the
        run's policy."""
        from holdfast.policy.client.replicas import EnginePolicy
        from holdfast.policy.providers import base_url

        addresses = tuple(base_url(url) for url in urls)
        if (addresses, model) not in self._open:
            keys = {base_url(url): key for url, key in self._api_keys.items()}
            found_keys = {keys.get(address) for address in addresses}
            if len(found_keys) > 1:
                raise UsageError("replicas of one model share one key; give each the same")
            like = own if isinstance(own, EnginePolicy) else EnginePolicy(addresses, model)
            policy = like.sibling(
                addresses,
                model,
                api_key=found_keys.pop(),
                retry=self._retry,
                patience=self._patience,
            )
            self._open[addresses, model] = Client(policy)
        return self._open[addresses, model]

    async def aclose(self) -> None:
        """Closes all clients. Raises the error of a client that cannot be closed, or an exception
        group if there are several."""
        clients, self._open = list(self._open.values()), {}
        results = await asyncio.gather(
            *(client.aclose() for client in clients), return_exceptions=True
        )
        errors = [result for result in results if isinstance(result, BaseException)]
        if len(errors) == 1:
            raise errors[0]
        if errors:
            raise BaseExceptionGroup("several clients failed to close", errors)
