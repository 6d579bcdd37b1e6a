"""ExternalRolloutProcessor: agents that others start, and that come to the gateway by themselves.

    POST /trajectories {}                              the next one that waits for an agent
    POST /trajectories {"task": "…", "sample": 0}      a certain one; again: its next attempt

answers with the task, the addresses and the key; the agent ends with `POST …/complete`.
"""

import asyncio

import msgspec
from aiohttp import web
from msgspec import Struct

from holdfast.gateway.exchange import Refused
from holdfast.gateway.offers import Offer, Offers
from holdfast.gateway.server import Binding, Gateway
from holdfast.gateway.through_gateway import SILENCE, GatewayRolloutProcessor, attempt_of
from holdfast.gateway.trajectory import AgentTrajectory
from holdfast.gateway.visit import Visit
from holdfast.records.errors import Rewound
from holdfast.records.redaction import hide
from holdfast.rollout.context import Rollout
from holdfast.rollout.processor import Returned

LONGEST_WAIT = 60.0
REPLACED = "another agent has taken the trajectory"


class _Wanted(Struct, forbid_unknown_fields=True):
    task: str | None = None
    sample: int = 0
    wait: float = 0.0
    """Seconds to wait for one."""


class ExternalRolloutProcessor(GatewayRolloutProcessor):
    """As many trajectories are open at once as the run's concurrency says."""

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        silence: float = SILENCE,
    ):
        """`token`: what whoever takes trajectories has to send as a bearer; needed beyond
        loopback."""
        super().__init__(silence=silence)
        self._host, self._port, self._token = host, port, token
        hide(token)
        self._offers = Offers()
        self._by_key: dict[str, Offer] = {}
        self.url = ""
        """Where agents find it, once it is set up."""

    def make_gateway(self) -> Gateway:
        from holdfast.gateway.wires.all import WIRES

        return Gateway(
            WIRES,
            host=self._host,
            port=self._port,
            token=self._token,
            endpoints={"/trajectories": self._open},
        )

    async def setup(self) -> None:
        await super().setup()
        assert self._gateway is not None, "it was just made"
        self.url = self._gateway.url

    async def run_agent(
        self, t: Rollout, binding: Binding, trajectory: AgentTrajectory
    ) -> Returned:
        """Waits for an agent, and then for its end; its reward is the trajectory's."""
        offer = Offer(t.key, attempt_of(t), t.task, binding, trajectory, asyncio.Event())
        self._by_key[binding.key] = offer
        await self._offers.put(offer)
        done = asyncio.create_task(trajectory.completed.wait())
        replaced = asyncio.create_task(offer.replaced.wait())
        try:
            await asyncio.wait({done, replaced}, return_when=asyncio.FIRST_COMPLETED)
            if not done.done():
                # No failure: what is recorded is replayed for the agent that comes now.
                raise t.session.failed(Rewound(REPLACED))
            return None
        finally:
            for task in (done, replaced):
                task.cancel()
            await self._offers.withdraw(offer)
            del self._by_key[binding.key]

    def expects_calls(self, binding: Binding) -> bool:
        offer = self._by_key.get(binding.key)
        return offer is not None and offer.is_taken

    async def _open(self, visit: Visit) -> web.StreamResponse:
        wanted = _read(await visit.body())
        wait = min(max(wanted.wait, 0.0), LONGEST_WAIT)
        if wanted.task is None:
            offer = await self._offers.take(wait)
        else:
            offer = await self._offers.take_certain(wanted.task, wanted.sample, LONGEST_WAIT)
        return await visit.telling.whole(msgspec.json.encode(_told(offer)))


def _read(body: bytes) -> _Wanted:
    try:
        return msgspec.json.decode(body or b"{}", type=_Wanted)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Refused(400, f'it wants {{"task", "sample", "wait"}}: {error}') from error


def _told(offer: Offer) -> dict[str, object]:
    binding = offer.binding
    return {
        "trajectory": str(offer.key),
        "group": offer.key.group,
        "task": offer.task,
        "sample": offer.key.sample,
        "attempt": offer.attempt,
        "key": binding.key,
        "openai_base_url": f"{binding.url}/v1",
        "anthropic_base_url": binding.url,
        "bound_url": binding.bound_url,
    }
