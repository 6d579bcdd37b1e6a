"""Gateway: the HTTP side. Finds the trajectory of a call, lets its wire read it, and tells the
answer once it is durable.

One line is logged for each request, and each is counted; neither knows keys, bodies or addresses.
"""

import hmac
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from aiohttp import web
from msgspec import Struct, structs

from holdfast.gateway import address
from holdfast.gateway.address import LOOPBACK, Address
from holdfast.gateway.calls.stream import Pace
from holdfast.gateway.calls.strip_fields import MESSAGES, Ignoring
from holdfast.gateway.calls.tool_calls import AgentTools
from holdfast.gateway.calls.trajectory import AgentTrajectory
from holdfast.gateway.http import tool_mcp, tool_routes
from holdfast.gateway.http.call_route import Bound, call
from holdfast.gateway.http.count_tokens import prompt_tokens
from holdfast.gateway.http.errors import WrongMethod, no_key, nothing_at, refuse, several_keys
from holdfast.gateway.http.exceptions import (
    attempt_over,
    completed,
    reward_of,
    unforeseen,
    until_durable,
)
from holdfast.gateway.http.listener import Listener
from holdfast.gateway.http.metrics import CONTENT_TYPE, Metrics, as_text
from holdfast.gateway.http.relay import Tickets
from holdfast.gateway.http.request import Visit
from holdfast.gateway.limits import GatewayLimits
from holdfast.gateway.protocol.keys import Bearer, Keys
from holdfast.gateway.protocol.messages import RequestRejected, Wire
from holdfast.gateway.weight_hold import HOLD_SECONDS, CallGate, HeldPolicy, Hold
from holdfast.gateway.wires.anthropic import messages
from holdfast.gateway.wires.openai import models
from holdfast.gateway.workers.peers import WorkerStats

_MODELS = "/v1/models"
_READS = ("GET", "HEAD")
_QUIET = ("/health", "/metrics")
"""Asked all the time, by those who watch."""
_YES_OR_NO = {None: "-", True: "yes", False: "no"}
_log = logging.getLogger("holdfast.gateway")

Endpoint = Callable[[Visit], Awaitable[web.StreamResponse]]
"""What answers at an address: it raises `RequestRejected`, or tells and returns what it told."""
Stranger = Callable[[Visit, Bearer], Awaitable[web.StreamResponse | None]]
"""What becomes of a call whose key is signed and not bound here: it is answered elsewhere, which is
returned; or bound meanwhile (None); or refused."""


class Inner(Struct, frozen=True):
    """What the workers of one gateway have among themselves."""

    endpoints: Mapping[str, Endpoint] = msgspec.field(default_factory=dict)
    """What others find here, and nobody else."""
    socket: Path | None = None
    """Where they come in."""
    everyone: Callable[[], Awaitable[list[tuple[str, WorkerStats]]]] | None = None
    """What they all, with their labels, counted."""


ALONE = Inner()


class Binding(Struct, frozen=True):
    """Where an agent finds its trajectory."""

    url: str
    """Without a key in it: `…/v1` is the base URL of OpenAI clients, `…` that of Anthropic's."""
    key: str
    bound_url: str
    """With the key in its path, for clients that cannot set one."""


class Gateway:
    """Serves the trajectories that are bound to it; use it as an async context manager.

    At loopback unless told otherwise. Beyond it a token is wanted, which opens `/metrics`; agents
    need none, since each has the key of its trajectory.
    """

    def __init__(
        self,
        wires: Mapping[str, Wire],
        *,
        at: Address = LOOPBACK,
        model: str = "",
        limits: GatewayLimits | None = None,
        endpoints: Mapping[str, Endpoint] | None = None,
        ignore: Iterable[str] = (),
        keys: Keys | None = None,
        stranger: Stranger | None = None,
        inner: Inner = ALONE,
    ):
        """`model`: the name that `/v1/models` tells; by default that of the trajectory's policy.
        `endpoints`: more of them, each at a path that is posted to, which the token opens.
        `ignore`: what is taken out of every request (see `ignoring`)."""
        address.check_usable(at.token, at.host)
        self._wires = dict(wires)
        self._at = at
        self._model = model
        self._limits = limits or GatewayLimits()
        self._ignoring = Ignoring(ignore)
        self._keys = keys or Keys()
        self._stranger = stranger
        self._inner = inner
        self._tickets = Tickets()
        self._bound: dict[str, Bound] = {}
        """By key."""
        self._bindings = 0
        self._gate = CallGate()
        self._metrics = Metrics()
        self._listener = Listener(self._handle, self._limits)
        self._internal_requests = 0
        self._created = int(time.time())
        self._routes: dict[str, tuple[Sequence[str], Endpoint]] = {
            **{path: (("POST",), self._guarded(one)) for path, one in (endpoints or {}).items()},
            **dict.fromkeys(wires, (("POST",), self._call)),
            "/v1/messages/count_tokens": (("POST",), self._count),
            _MODELS: (_READS, self._models),
            "/complete": (("POST",), self._complete),
            tool_routes.LIST: (_READS, self._with_tools(tool_routes.list_tools)),
            tool_routes.CALL: (("POST",), self._with_tools(tool_routes.call_tool)),
            tool_mcp.PATH: (("POST",), self._with_tools(tool_mcp.serve)),
            "/health": (_READS, self._health),
            "/metrics": (_READS, self._show_metrics),
        }
        self.url = ""

    async def __aenter__(self) -> "Gateway":
        at = self._at
        port = await self._listener.start(
            at.host, at.port, tls=at.tls, sock=at.sock, inside=self._inner.socket
        )
        self.url = await address.advertised(
            at.host, port, given=at.advertise, secure=at.tls is not None
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Accepts no more, lets calls that are under way end within `limits.drain_seconds`, and
        closes. Those that are cut off then are recorded all the same, and told when asked again."""
        self._gate.open()
        await self._listener.aclose()

    def bind(self, trajectory: AgentTrajectory, *, ends: bool = False) -> Binding:
        """A key of its own for the attempt; it is refused once it is released. `ends`: the attempt
        ends when the agent says that it is done, which it is told when that is durable."""
        session = trajectory.session
        trajectory.pace = Pace(self._limits.stream_tokens, self._limits.stream_seconds)
        self._bindings += 1
        attempt = len(session.history.attempts) + 1
        bearer = Bearer(trajectory.name, session.lease.epoch, attempt, self._bindings)
        key = self._keys.make(bearer)
        known = {called.answer for called in session.history.calls.values()}
        self._bound[key] = Bound(trajectory, session.voice, known, [key], ends)
        policy = HeldPolicy(session.voice.policy, self._gate)
        session.voice = structs.replace(session.voice, policy=policy)
        return Binding(self.url, key, f"{self.url}/t/{key}")

    def release(self, binding: Binding) -> None:
        bound = self._bound.get(binding.key)
        if bound is not None:
            for key in bound.keys:
                del self._bound[key]
            bound.trajectory.session.voice = bound.voice

    def adopt(self, binding: Binding, key: str) -> None:
        """From now on, `key`, which was made before, opens the same as that of `binding`."""
        bound = self._bound[binding.key]
        bound.keys.append(key)
        self._bound[key] = bound

    def hold(self, seconds: float = HOLD_SECONDS) -> Hold:
        """From now on, calls that would sample wait, until `end()` of what is returned, or for so
        many seconds: then they go on. Streams are kept alive meanwhile."""
        return self._gate.hold(seconds)

    @asynccontextmanager
    async def held(self, seconds: float = HOLD_SECONDS) -> AsyncIterator[None]:
        hold = self.hold(seconds)
        try:
            yield
        finally:
            hold.end()

    # --- requests

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        visit = Visit(request, self._limits)
        is_internal = visit.is_inside and visit.path in self._inner.endpoints
        self._internal_requests += is_internal
        try:
            return await self._served(visit)
        finally:
            self._internal_requests -= is_internal
            self._note(visit)

    async def _served(self, visit: Visit) -> web.StreamResponse:
        try:
            if self._listener.is_closing:
                raise RequestRejected(503, "the gateway is closing", code="stopping")
            endpoint = self._endpoint(visit)
            self._check_one_key(visit)
            if visit.key not in self._bound and (told := await self._told_elsewhere(visit)):
                return told
            return await endpoint(visit)
        except RequestRejected as refused:
            return await refuse(visit, refused)
        except ConnectionError:
            raise
        except Exception as error:
            ours = unforeseen(error, visit.trajectory)
            if visit.telling.is_begun:
                visit.telling.status = ours.status
                raise ConnectionResetError("the answer cannot be told to its end") from error
            return await refuse(visit, ours)

    def _check_one_key(self, visit: Visit) -> None:
        """A request belongs to one trajectory. What is no key of ours names none."""
        if len(visit.keys) > 1 and sum(self._keys.read(one) is not None for one in visit.keys) > 1:
            raise several_keys()

    async def _told_elsewhere(self, visit: Visit) -> web.StreamResponse | None:
        bearer = self._keys.read(visit.key)
        if bearer is None or self._stranger is None:
            return None
        visit.telling.trajectory = bearer.trajectory
        return await self._stranger(visit, bearer)

    def _note(self, visit: Visit) -> None:
        if visit.route in self._inner.endpoints:
            return
        status, seconds = str(visit.telling.status or "gone"), visit.seconds
        self._metrics.count(visit.route, status=status, seconds=seconds, replayed=visit.replayed)
        _log.log(
            logging.DEBUG if visit.route in _QUIET else logging.INFO,
            "call trajectory=%s wire=%s status=%s replayed=%s seconds=%.4f%s",
            visit.trajectory or "-",
            visit.route,
            status,
            _YES_OR_NO[visit.replayed],
            seconds,
            f" ignored={','.join(visit.ignored)}" if visit.ignored else "",
        )

    def _endpoint(self, visit: Visit) -> Endpoint:
        # A model's name, or a tool's, is no part of the route: that is counted and logged.
        named = (_MODELS + "/", tool_routes.CALL)
        begins = next((one for one in named if visit.path.startswith(one)), visit.path)
        route = _MODELS if begins == named[0] else begins
        found = self._routes.get(route)
        if visit.is_inside and route in self._inner.endpoints:
            found = (("POST",), self._inner.endpoints[route])
        if found is None:
            raise nothing_at(visit.path, self._routes)
        methods, endpoint = found
        visit.route, visit.wire = route, self._wires.get(route)
        if visit.request.method not in methods:
            raise WrongMethod(methods)
        return endpoint

    def _found(self, visit: Visit) -> Bound:
        bound = self._bound.get(visit.key)
        if bound is not None:
            visit.telling.trajectory = bound.trajectory.name
            bound.trajectory.heard()
            return bound
        if self._keys.read(visit.key) is not None:
            raise attempt_over()
        raise no_key(visit.key)

    async def _call(self, visit: Visit) -> web.StreamResponse:
        bound = self._found(visit)
        return await call(visit, bound, ignoring=self._ignoring, tickets=self._tickets)

    async def _count(self, visit: Visit) -> web.StreamResponse:
        bound = self._found(visit)
        body, _ = self._ignoring.without(MESSAGES, await visit.body())
        ask = messages.count_ask(body)
        tokens = await prompt_tokens(bound.trajectory, ask)
        return await visit.telling.whole(messages.count_answer(tokens))

    async def _models(self, visit: Visit) -> web.StreamResponse:
        bound = self._found(visit)
        model = self._model or bound.voice.policy.model
        name = visit.path.removeprefix(_MODELS).removeprefix("/")
        body = models.every([model], created=self._created)
        if name:
            body = models.one(name, [model], created=self._created)
        if visit.is_anthropic and name:
            body = messages.model_answer(model, created=self._created)
        elif visit.is_anthropic:
            body = messages.models_answer([model], created=self._created)
        return await visit.telling.whole(body)

    async def _complete(self, visit: Visit) -> web.StreamResponse:
        """`POST /complete {"reward": 0.5}`: the agent is done. Saying it again changes nothing."""
        trajectory = self._found(visit).trajectory
        reward = reward_of(await visit.body())
        # The attempt may have ended while the body came.
        bound = self._found(visit)
        if not trajectory.completed.is_set():
            trajectory.reward = reward
            trajectory.completed.set()
        if bound.ends:
            await until_durable(trajectory.session)
        return await visit.telling.whole(completed(trajectory.reward))

    def unheard(self, ticket: str) -> None:
        """What was answered through another worker did not arrive."""
        self._tickets.missed(ticket)

    def _with_tools(
        self, endpoint: Callable[[Visit, AgentTools], Awaitable[web.StreamResponse]]
    ) -> Endpoint:
        async def served(visit: Visit) -> web.StreamResponse:
            trajectory = self._found(visit).trajectory
            if visit.route == tool_routes.CALL:
                trajectory.check_not_completed()
            try:
                return await endpoint(visit, trajectory.tools)
            finally:
                if visit.ticket and visit.tool is not None:
                    self._tickets.put(visit.ticket, visit.tool)

        return served

    def _guarded(self, endpoint: Endpoint) -> Endpoint:
        async def guarded(visit: Visit) -> web.StreamResponse:
            self._check_token(visit)
            return await endpoint(visit)

        return guarded

    async def _health(self, visit: Visit) -> web.StreamResponse:
        every = await self._all_stats()
        told: dict[str, object] = {
            "status": "ok",
            "trajectories": sum(stats.trajectories for _, stats in every),
        }
        if self._inner.everyone is not None:
            told["workers"] = len(every)
        return await visit.telling.whole(msgspec.json.encode(told))

    async def _show_metrics(self, visit: Visit) -> web.StreamResponse:
        self._check_token(visit)
        text = as_text([(label, stats.families) for label, stats in await self._all_stats()])
        return await visit.telling.whole(text.encode(), content_type=CONTENT_TYPE)

    async def _all_stats(self) -> list[tuple[str, WorkerStats]]:
        everyone = self._inner.everyone
        return [("", self.stats)] if everyone is None else await everyone()

    @property
    def stats(self) -> WorkerStats:
        """What this process did."""
        bound = len({id(one) for one in self._bound.values()})
        gauges = {
            "trajectories": bound,
            # Other workers wait here for events, each with a request that is no call.
            "in_flight": self._listener.in_flight - self._internal_requests,
            **self._gate.gauges,
        }
        return WorkerStats(bound, tuple(self._metrics.families(gauges)))

    def _check_token(self, visit: Visit) -> None:
        if self._at.token is None:
            return
        given = visit.key.encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(given, self._at.token.encode()):
            raise RequestRejected(
                401, "the gateway's token opens this, as `Authorization: Bearer TOKEN`"
            )
