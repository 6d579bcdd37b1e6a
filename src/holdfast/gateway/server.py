"""Gateway: serves the HTTP routes. It finds the trajectory of a request by its key, and the handler
by its path.

Each request is counted and logged in one line. Neither the counts nor the log contain keys, bodies
or addresses.
"""

import hmac
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit
from weakref import WeakSet

import msgspec
from aiohttp import web
from msgspec import Struct

from holdfast.gateway import address
from holdfast.gateway.address import LOOPBACK, Address
from holdfast.gateway.calls.call import Pace
from holdfast.gateway.calls.rejections import attempt_over, internal_error
from holdfast.gateway.calls.tool_calls import AgentTools
from holdfast.gateway.calls.trajectory import AgentTrajectory
from holdfast.gateway.calls.unsupported import MESSAGES, IgnoredFields
from holdfast.gateway.http import tool_routes
from holdfast.gateway.http.call_route import (
    Bound,
    call,
    completed,
    count_tokens,
    parse_reward,
    until_durable,
)
from holdfast.gateway.http.errors import (
    WrongMethod,
    invalid_key,
    send_rejection,
    several_keys,
    unknown_route,
)
from holdfast.gateway.http.listener import Listener
from holdfast.gateway.http.metrics import Metrics
from holdfast.gateway.http.request import RequestContext
from holdfast.gateway.http.tickets import RelayReport, Tickets
from holdfast.gateway.limits import GatewayLimits
from holdfast.gateway.protocol.keys import Bearer, Keys
from holdfast.gateway.protocol.messages import RequestRejected, Wire
from holdfast.gateway.wires.anthropic import messages
from holdfast.gateway.wires.openai import models
from holdfast.gateway.workers.peers import WorkerStats
from holdfast.off_loop import off_loop
from holdfast.policy.hold import HOLD_SECONDS, CallHolds, Hold
from holdfast.prometheus import CONTENT_TYPE, render
from holdfast.request_guard import RequestRefused, check_request
from holdfast.server_tokens import LoopbackToken

_MODELS = "/v1/models"
_READS = ("GET", "HEAD")
_QUIET = ("/health", "/metrics")
"""Routes that monitoring systems request all the time. Their requests are logged at DEBUG."""
_YES_OR_NO = {None: "-", True: "yes", False: "no"}
_log = logging.getLogger("holdfast.gateway")

Endpoint = Callable[[RequestContext], Awaitable[web.StreamResponse]]
"""The handler of a route: it sends a response and returns it, or raises `RequestRejected`."""
UnboundKeyHandler = Callable[[RequestContext, Bearer], Awaitable[web.StreamResponse | None]]
"""Handles a call with a signed key that is not bound in this process. It sends a response and
returns it, or returns None if the key is bound by now. It may raise `RequestRejected`."""


class WorkerLinks(Struct, frozen=True):
    """The links by which the workers of one gateway reach each other."""

    endpoints: Mapping[str, Endpoint] = msgspec.field(default_factory=dict)
    """The routes for other workers only."""
    socket: Path | None = None
    """The socket that serves these routes."""
    all_stats: Callable[[], Awaitable[list[tuple[str, WorkerStats]]]] | None = None
    """The counts of all workers, with their labels."""


SINGLE_WORKER = WorkerLinks()


class Binding(Struct, frozen=True):
    """The address and the key by which an agent reaches its trajectory."""

    url: str
    """The URL without a key. OpenAI clients use `…/v1` as their base URL, Anthropic clients `…`."""
    key: str
    bound_url: str
    """The URL with the key in its path, for clients that cannot set a key."""


class Gateway:
    """Serves the trajectories that are bound to it. Use it as an async context manager.

    By default it listens at loopback. Any other address requires a token, which also opens
    `/metrics`. Agents do not need the token, because each has the key of its trajectory.
    """

    def __init__(
        self,
        wires: Mapping[str, Wire],
        *,
        at: Address = LOOPBACK,
        model: str = "",
        limits: GatewayLimits | None = None,
        endpoints: Mapping[str, Endpoint] | None = None,
        open_endpoints: Mapping[str, Endpoint] | None = None,
        ignore: Iterable[str] = (),
        keys: Keys | None = None,
        on_unbound_key: UnboundKeyHandler | None = None,
        links: WorkerLinks = SINGLE_WORKER,
        holds: CallHolds | None = None,
    ):
        """Creates a gateway, which starts to listen when its context is entered.

        `model` is the name in `/v1/models`; the default is the model of the trajectory's policy.
        `endpoints` are more POST routes, which require the token even at loopback. `open_endpoints`
        are POST routes that check the caller themselves. `ignore` names the fields to remove from
        every request (see `unsupported`). `on_unbound_key` handles keys that are not bound here.
        `holds` are the call holds of the policy that the trajectories sample from.
        """
        address.check_usable(at.token, at.host)
        self._wires = dict(wires)
        self._at = at
        self._model = model
        self._limits = limits or GatewayLimits()
        self._ignored_fields = IgnoredFields(ignore)
        self._keys = keys or Keys()
        self._on_unbound_key = on_unbound_key
        self._links = links
        self._inside = str(links.socket or "")
        self._tickets = Tickets()
        self._bound: dict[str, Bound] = {}
        """Bound trajectories by key."""
        self._bindings = 0
        self.holds = holds or CallHolds()
        self._own_holds: WeakSet[Hold] = WeakSet()
        self._metrics = Metrics()
        self._has_token_routes = bool(endpoints)
        self._listener = Listener(
            self._handle, self._limits, on_disconnect=self._tickets.disconnect
        )
        self._internal_requests = 0
        self._created = int(time.time())
        self.token = at.token or ""
        """The token for `endpoints`. If none was given, it is made at the start."""
        self._loopback_token: LoopbackToken | None = None
        self._routes: dict[str, tuple[Sequence[str], Endpoint]] = {
            **{
                path: (("POST",), self._with_token(endpoint))
                for path, endpoint in (endpoints or {}).items()
            },
            **{path: (("POST",), endpoint) for path, endpoint in (open_endpoints or {}).items()},
            **dict.fromkeys(wires, (("POST",), self._call)),
            "/v1/messages/count_tokens": (("POST",), self._count),
            _MODELS: (_READS, self._models),
            "/complete": (("POST",), self._complete),
            tool_routes.LIST: (_READS, self._with_tools(tool_routes.list_tools)),
            tool_routes.CALL: (("POST",), self._with_tools(tool_routes.call_tool)),
            tool_routes.MCP: (("POST",), self._with_tools(tool_routes.serve_mcp)),
            "/health": (_READS, self._health),
            "/metrics": (_READS, self._send_metrics),
        }
        self.url = ""

    async def __aenter__(self) -> "Gateway":
        at = self._at
        paths = [path for path in (self._links.socket, at.path) if path is not None]
        port = await self._listener.start(at.host, at.port, tls=at.tls, sock=at.sock, paths=paths)
        if at.path is not None:
            at.path.chmod(0o666)
        if self._has_token_routes and not self.token:
            self._loopback_token = LoopbackToken(port)
            self.token = self._loopback_token.value
        self.url = await address.advertised_url(
            at.host, port, advertised=at.advertise, secure=at.tls is not None
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stops accepting requests, gives calls in flight `limits.drain_seconds` to end, and
        closes. The answers of calls that did not end in time are still recorded, and are sent when
        the agent repeats the request."""
        for hold in tuple(self._own_holds):
            hold.end()
        await self._listener.aclose()
        if self._loopback_token is not None:
            self._loopback_token.close()

    def bind(self, trajectory: AgentTrajectory, *, ends: bool = False) -> Binding:
        """Binds an attempt to a new key. After `release`, the key is rejected. With `ends`, the
        attempt ends when the agent says that it is done, and the agent gets the response when the
        end is durable."""
        session = trajectory.session
        trajectory.pace = Pace(self._limits.stream_tokens, self._limits.stream_seconds)
        self._bindings += 1
        attempt = len(session.history.attempts) + 1
        bearer = Bearer(trajectory.name, session.lease.epoch, attempt, self._bindings)
        key = self._keys.make(bearer)
        known = {called.answer for called in session.history.calls.values()}
        self._bound[key] = Bound(trajectory, known, [key], ends)
        return Binding(self.url, key, f"{self.url}/t/{key}")

    def release(self, binding: Binding) -> None:
        bound = self._bound.get(binding.key)
        if bound is not None:
            for key in bound.keys:
                del self._bound[key]

    def adopt(self, binding: Binding, key: str) -> None:
        """Binds `key`, which was made earlier, to the trajectory of `binding`."""
        bound = self._bound[binding.key]
        bound.keys.append(key)
        self._bound[key] = bound

    def hold(self, seconds: float = HOLD_SECONDS) -> Hold:
        """Makes calls that need sampling wait until `end()` of the returned hold is called, or for
        at most `seconds`. Streams are kept alive while they wait."""
        hold = self.holds.hold(seconds)
        self._own_holds.add(hold)
        if self._listener.is_closing:
            hold.end()  # Lets calls in flight end.
        return hold

    @asynccontextmanager
    async def held(self, seconds: float = HOLD_SECONDS) -> AsyncIterator[None]:
        hold = self.hold(seconds)
        try:
            yield
        finally:
            hold.end()

    # --- requests

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        context = RequestContext(request, self._limits, self._tickets, self._inside)
        is_internal = context.is_inside and context.path in self._links.endpoints
        self._internal_requests += is_internal
        try:
            return await self._serve(context)
        finally:
            self._internal_requests -= is_internal
            self._log_and_count(context)

    async def _serve(self, context: RequestContext) -> web.StreamResponse:
        try:
            if self._listener.is_closing:
                raise RequestRejected(503, "the gateway is closing", code="stopping")
            endpoint = self._endpoint(context)
            self._check_sender(context)
            self._check_one_key(context)
            if context.key not in self._bound:
                response = await self._handle_unbound_key(context)
                if response is not None:
                    return response
            return await endpoint(context)
        except RequestRejected as rejection:
            return await send_rejection(context, rejection)
        except ConnectionError:
            raise
        except Exception as error:
            failure = internal_error(error, context.trajectory)
            if context.has_begun:
                context.status = failure.status
                raise ConnectionResetError("the response cannot be completed") from error
            return await send_rejection(context, failure)

    def _check_sender(self, context: RequestContext) -> None:
        if context.is_inside:
            return
        names = (urlsplit(self.url).hostname or "",)
        is_known = self._at.token is not None or self._at.tls is not None
        try:
            check_request(context.request, names=None if is_known else names)
        except RequestRefused as refusal:
            raise RequestRejected(refusal.status, str(refusal), code="refused") from refusal

    def _check_one_key(self, context: RequestContext) -> None:
        """Raises `RequestRejected` if a request has keys of several trajectories. Keys that this
        gateway did not make are not counted."""
        if (
            len(context.keys) > 1
            and sum(self._keys.read(key) is not None for key in context.keys) > 1
        ):
            raise several_keys()

    async def _handle_unbound_key(self, context: RequestContext) -> web.StreamResponse | None:
        bearer = self._keys.read(context.key)
        if bearer is None or self._on_unbound_key is None:
            return None
        context.trajectory = bearer.trajectory
        return await self._on_unbound_key(context, bearer)

    def _log_and_count(self, context: RequestContext) -> None:
        if context.route in self._links.endpoints:
            return
        route, seconds, replayed = context.route, context.seconds, context.replayed
        status = str(context.status or "gone")
        self._metrics.count(route, status=status, seconds=seconds, replayed=replayed)
        _log.log(
            logging.DEBUG if route in _QUIET else logging.INFO,
            "call trajectory=%s wire=%s status=%s replayed=%s seconds=%.4f%s",
            context.trajectory or "-",
            route,
            status,
            _YES_OR_NO[replayed],
            seconds,
            f" ignored={','.join(context.ignored)}" if context.ignored else "",
        )

    def _endpoint(self, context: RequestContext) -> Endpoint:
        # Routes are counted and logged, so names of models and tools are no part of them.
        prefixes = {_MODELS + "/": _MODELS, tool_routes.CALL: tool_routes.CALL}
        routes = (route for prefix, route in prefixes.items() if context.path.startswith(prefix))
        route = next(routes, context.path)
        handler = self._routes.get(route)
        if context.is_inside and route in self._links.endpoints:
            handler = (("POST",), self._links.endpoints[route])
        if handler is None:
            raise unknown_route(context.path, self._routes)
        methods, endpoint = handler
        context.route, context.wire = route, self._wires.get(route)
        if context.request.method not in methods:
            raise WrongMethod(methods)
        return endpoint

    def _find_bound(self, context: RequestContext) -> Bound:
        bound = self._bound.get(context.key)
        if bound is not None:
            context.trajectory = bound.trajectory.name
            bound.trajectory.touch()
            return bound
        if self._keys.read(context.key) is not None:
            raise attempt_over()
        raise invalid_key(context.key)

    async def _call(self, context: RequestContext) -> web.StreamResponse:
        bound = self._find_bound(context)
        return await call(context, bound, ignored_fields=self._ignored_fields)

    async def _count(self, context: RequestContext) -> web.StreamResponse:
        bound = self._find_bound(context)
        sent = await context.body()
        request = await off_loop(
            lambda: messages.parse_count_request(self._ignored_fields.strip(MESSAGES, sent)[0]),
            size=len(sent),
        )
        tokens = await count_tokens(bound.trajectory, request)
        return await context.send(messages.format_count(tokens))

    async def _models(self, context: RequestContext) -> web.StreamResponse:
        bound = self._find_bound(context)
        model = self._model or bound.trajectory.session.speaker.policy.model
        name = context.path.removeprefix(_MODELS).removeprefix("/")
        body = models.format_models([model], created=self._created)
        if name:
            body = models.format_model(name, [model], created=self._created)
        if context.is_anthropic and name:
            body = messages.format_model(model, created=self._created)
        elif context.is_anthropic:
            body = messages.format_models([model], created=self._created)
        return await context.send(body)

    async def _complete(self, context: RequestContext) -> web.StreamResponse:
        """Handles `POST /complete {"reward": 0.5}`, by which the agent says that it is done.
        Repeating the request changes nothing."""
        trajectory = self._find_bound(context).trajectory
        reward = parse_reward(await context.body())
        # The attempt may have ended while the body arrived.
        bound = self._find_bound(context)
        if not trajectory.completed.is_set():
            trajectory.reward = reward
            trajectory.completed.set()
        if bound.ends:
            await until_durable(trajectory.session)
        return await context.send(completed(trajectory.reward))

    def take_report(self, report: RelayReport) -> None:
        """Handles the report of another worker about a response that it relayed."""
        self._tickets.report(report)

    def _with_tools(
        self, endpoint: Callable[[RequestContext, AgentTools], Awaitable[web.StreamResponse]]
    ) -> Endpoint:
        async def serve(context: RequestContext) -> web.StreamResponse:
            trajectory = self._find_bound(context).trajectory
            if context.route == tool_routes.CALL:
                trajectory.check_not_completed()
            return await endpoint(context, trajectory.tools)

        return serve

    def _with_token(self, endpoint: Endpoint) -> Endpoint:
        async def serve(context: RequestContext) -> web.StreamResponse:
            self._check_token(context, self.token)
            return await endpoint(context)

        return serve

    async def _health(self, context: RequestContext) -> web.StreamResponse:
        workers = await self._all_stats()
        body: dict[str, object] = {
            "status": "ok",
            "trajectories": sum(stats.trajectories for _, stats in workers),
        }
        if self._links.all_stats is not None:
            body["workers"] = len(workers)
        return await context.send_json(body)

    async def _send_metrics(self, context: RequestContext) -> web.StreamResponse:
        self._check_token(context, self._at.token)
        families = [(label, stats.families) for label, stats in await self._all_stats()]
        text = render(families, prefix="holdfast_gateway_")
        return await context.send(text.encode(), content_type=CONTENT_TYPE)

    async def _all_stats(self) -> list[tuple[str, WorkerStats]]:
        all_stats = self._links.all_stats
        return [("", self.stats)] if all_stats is None else await all_stats()

    @property
    def stats(self) -> WorkerStats:
        """Returns the counts of this process."""
        bound = len({id(bound) for bound in self._bound.values()})
        gauges = {
            "trajectories": bound,
            # Other workers wait here for events. Their requests are not calls.
            "in_flight": self._listener.in_flight - self._internal_requests,
            **self.holds.gauges,
        }
        return WorkerStats(bound, tuple(self._metrics.families(gauges)))

    def _check_token(self, context: RequestContext, token: str | None) -> None:
        if token is None:
            return
        if not token:
            raise RequestRejected(503, "the gateway is starting", code="starting")
        key = context.key.encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(key, token.encode()):
            raise RequestRejected(
                401,
                "the gateway's token opens this, as `Authorization: Bearer TOKEN`; the gateway "
                "says at its start where it is",
            )
