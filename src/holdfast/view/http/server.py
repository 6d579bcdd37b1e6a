"""The HTTP server of the pages.

It listens only on the loopback interface. Requests from web pages of other origins, and requests
for foreign host names, are refused, as by all of Holdfast's servers. Reading needs no token, but
actions (tags, forks) do. The token is in a file that only the user can read, and in the page that
our command opened. It is never part of an address that a browser sends to the server.
"""

import asyncio
import hmac
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.resources import files

import msgspec
from aiohttp import web

from holdfast.engine.export.prices import Prices
from holdfast.records.encoding.redaction import redact
from holdfast.records.errors import HoldfastError, JournalError, UsageError
from holdfast.request_body import read_body
from holdfast.request_guard import RequestRefused, check_request
from holdfast.server_tokens import LoopbackToken, token_file
from holdfast.view.http.forks import ForkOrder, Forks
from holdfast.view.http.live import Hub, Look
from holdfast.view.pages import comparison, search, token, training
from holdfast.view.pages import run as run_pages
from holdfast.view.pages import runs as runs_pages
from holdfast.view.pages import trajectory as trajectory_pages
from holdfast.view.pages.context import CONTEXT, Context, context_of
from holdfast.view.reading.columns import Columns
from holdfast.view.reading.digests import Digests
from holdfast.view.rendering import prepare, run_url
from holdfast.view.source import ShownJournal

HOST = "127.0.0.1"
PORT = 7777
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
MAX_BODY_BYTES = 64 << 10
SHUTDOWN_SECONDS = 1.0
_STATIC = {"style.css": "text/css", "view.js": "text/javascript"}
_HUB: web.AppKey[Hub] = web.AppKey("hub", Hub)
_FORKS: web.AppKey[Forks] = web.AppKey("forks", Forks)
_TOKEN: web.AppKey[str] = web.AppKey("token", str)
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_Page = Callable[[web.Request], Awaitable[str]]


class TagChange(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request that tags a run."""

    add: str = ""
    remove: str = ""


@asynccontextmanager
async def serving(
    where: str,
    *,
    port: int,
    any_port: bool = False,
    prices: Prices | None = None,
    tokenizer: str | None = None,
) -> AsyncIterator[tuple[str, str]]:
    """Serves the journal's pages until the end of the block. Yields the server's address and the
    token. If the port is taken, uses any free port with `any_port`, and otherwise raises
    `UsageError`."""
    listener = _listen(port, any_port=any_port)
    port = listener.getsockname()[1]
    source = ShownJournal(where)
    hub, forks = Hub(), Forks(source)
    try:
        await source.journal()
        prepare()
        with LoopbackToken(port) as secret:
            context = Context(
                source, Digests(), Columns(), prices, tokenizer, str(token_file(port))
            )
            app = _application(context, hub, forks, secret.value)
            runner = web.AppRunner(
                app, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS, auto_decompress=False
            )
            await runner.setup()
            try:
                await web.SockSite(runner, listener).start()
                yield f"http://{HOST}:{port}", secret.value
            finally:
                await hub.close()
                await forks.close()
                await context.digests.close()
                await runner.cleanup()
    finally:
        listener.close()
        await source.close()


def _listen(port: int, *, any_port: bool) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
    except OSError as error:
        listener.close()
        if any_port:
            return _listen(0, any_port=False)
        raise UsageError(
            f"port {port} cannot be used ({error.strerror}): name another one with --port, or "
            "--port 0 for any"
        ) from error
    return listener


def _application(context: Context, hub: Hub, forks: Forks, secret: str) -> web.Application:
    app = web.Application(middlewares=[_guard], client_max_size=MAX_BODY_BYTES)
    app[CONTEXT], app[_HUB], app[_FORKS], app[_TOKEN] = context, hub, forks, secret
    trajectory = r"/run/{run}/{ordinal:\d+}/{sample:\d+}"
    pages: tuple[tuple[str, _Page], ...] = (
        ("/", runs_pages.runs_page),
        ("/run/{run}", run_pages.run_page),
        (trajectory, trajectory_pages.trajectory_page),
        (f"{trajectory}/text", trajectory_pages.text_page),
        (f"{trajectory}/token", token.token_page),
        ("/run/{run}/training", training.training_page),
        (r"/run/{run}/step/{step:\d+}", training.step_page),
        ("/run/{run}/search", search.search_page),
        ("/compare", comparison.compare_page),
        ("/compare/task", comparison.sides_page),
    )
    for path, page in pages:
        app.router.add_get(path, _shown(page))
    app.router.add_get("/find", _find)
    app.router.add_get("/events", _events)
    app.router.add_get(r"/static/{name:[\w.]+}", _static)
    app.router.add_post("/run/{run}/tags", _tag)
    app.router.add_post(f"{trajectory}/fork", _fork)
    return app


# --- who may ask


@web.middleware
async def _guard(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Refuses requests of other origins and for foreign host names. Answers an error with a page,
    or with JSON if the request is a POST."""
    try:
        check_request(request, names=())
        response = await handler(request)
    except RequestRefused as refusal:
        response = _error(request, refusal.status, str(refusal))
    except web.HTTPRedirection as redirection:
        response = web.Response(status=303, headers=redirection.headers)
    except web.HTTPException as error:
        reason = "there is no such page" if error.status == 404 else error.text or error.reason
        response = _error(request, error.status, reason)
    except JournalError as error:
        response = _error(request, 503, str(error))
    except UsageError as error:
        response = _error(request, 404, str(error))
    except HoldfastError as error:
        response = _error(request, 500, str(error))
    if not response.prepared:
        response.headers.update(HEADERS)
    return response


def _error(request: web.Request, status: int, message: str) -> web.Response:
    if request.method == "POST":
        return web.json_response({"error": redact(message)}, status=status)
    page = context_of(request).render("error.html", title="Not shown", message=message)
    return web.Response(text=page, status=status, content_type="text/html")


def _check_token(request: web.Request) -> None:
    header = request.headers.get("Authorization", "").encode()
    if not hmac.compare_digest(header, f"Bearer {request.app[_TOKEN]}".encode()):
        raise RequestRefused(
            401,
            "this changes the journal, and wants the server's token, which is in "
            f"{context_of(request).token_file}",
        )


# --- what they get


def _shown(page: _Page) -> _Handler:
    """Returns a handler that sends the page. While browsers watch the page, each version is
    rendered once for all of them."""

    async def handler(request: web.Request) -> web.StreamResponse:
        hub = request.app[_HUB]
        text = await hub.page(_topic_of(request), request.path_qs, lambda: page(request))
        return web.Response(text=text, content_type="text/html", headers=HEADERS)

    return handler


def _topic_of(request: web.Request) -> str:
    """Returns the topic of a page, which is the name under which browsers watch the page."""
    return request.rel_url.raw_path if request.path != "/" else "runs"


async def _events(request: web.Request) -> web.StreamResponse:
    topic = request.query.get("topic", "")
    return await request.app[_HUB].stream(request, topic, _look(context_of(request), topic))


def _look(context: Context, topic: str) -> Look:
    """Returns the function that checks whether a page has changed. The result of the function
    differs after a change."""
    from yarl import URL

    if topic == "runs":
        return lambda: runs_pages.look_at_runs(context)
    parts = URL(topic, encoded=True).raw_parts[2:]
    names = [URL(f"/{part}", encoded=True).name for part in parts]
    match names:
        case [run, "training"]:
            return lambda: training.look_at_training(context, run)
        case [run]:
            return lambda: run_pages.look_at_run(context, run)
        case [run, ordinal, sample] if ordinal.isdecimal() and sample.isdecimal():
            look = trajectory_pages.look_at_trajectory
            return lambda: look(context, run, int(ordinal), int(sample))
    raise web.HTTPNotFound


async def _find(request: web.Request) -> web.StreamResponse:
    """Redirects to the trajectory with the name RUN/TASK/SAMPLE, or to the run with the name
    RUN."""
    context, name = context_of(request), request.query.get("name", "").strip()
    run_name, _, rest = name.partition("/")
    run = await context.source.run(run_name)
    if not rest:
        raise web.HTTPSeeOther(run_url(run_name))
    task, _, sample = rest.rpartition("/")
    journal = await context.source.journal()
    for row in await journal.trajectories(run):
        if (row.key.task, str(row.key.sample)) in ((task, sample), (rest, "0")):
            raise web.HTTPSeeOther(run_url(run_name, row.ordinal, row.key.sample))
    raise UsageError(f"run {run_name!r} has no trajectory {rest!r:.200}: names are TASK/SAMPLE")


async def _static(request: web.Request) -> web.Response:
    name = request.match_info["name"]
    if name not in _STATIC:
        raise web.HTTPNotFound
    body = await asyncio.to_thread(files("holdfast.view").joinpath("static", name).read_bytes)
    return web.Response(body=body, content_type=_STATIC[name], charset="utf-8")


async def _tag(request: web.Request) -> web.Response:
    _check_token(request)
    try:
        change = msgspec.json.decode(await read_body(request), type=TagChange)
    except msgspec.DecodeError as error:
        raise RequestRefused(400, f"the body is no change of tags: {error}") from error
    source = context_of(request).source
    run = await source.tag(request.match_info["run"], add=change.add.strip(), remove=change.remove)
    return web.json_response({"tags": list(run.spec.tags)})


async def _fork(request: web.Request) -> web.Response:
    _check_token(request)
    try:
        order = msgspec.json.decode(await read_body(request), type=ForkOrder, strict=False)
    except msgspec.DecodeError as error:
        raise RequestRefused(400, f"the body is no fork: {error}") from error
    _, row = await trajectory_pages.locate(context_of(request), request)
    name = await request.app[_FORKS].begin(row.key, order)
    return web.json_response({"location": run_url(name)})
