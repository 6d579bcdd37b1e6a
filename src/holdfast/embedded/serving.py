"""The process of `holdfast serve` binds its port, loads, listens, prints its URL, and ends cleanly.

Loading takes long. The process binds the port before it loads and listens afterwards, so that a
client that connects meanwhile is rejected and does not wait. The process ends when the other end of
its stdin pipe closes.

While a model is loaded, a library may keep the interpreter's lock for a minute, and Python can run
no thread or handler. So until the process serves, the kernel ends it: the kernel sends a signal
when the pipe closes, and signals have their default, immediate effect. Afterwards, the closing of
the pipe stops the process as a signal does, and requests in flight are answered.
"""

import asyncio
import fcntl
import os
import select
import signal
import socket
import stat
import sys
import threading
import time
import traceback
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.addresses import is_loopback
from holdfast.embedded.arguments import NOTE, STARTING, ServeSettings
from holdfast.embedded.model import files
from holdfast.embedded.model.files import TINY
from holdfast.extras import require
from holdfast.records.errors import UsageError
from holdfast.server_tokens import LoopbackToken, token_file

_SHUTDOWN_SECONDS = 5.0
_BACKLOG = 4096
_STOP_SECONDS = 60.0
"""Seconds to answer the requests in flight, also on a busy machine."""
SIGNALS = (signal.SIGTERM, signal.SIGINT)


def serve(settings: ServeSettings) -> int:
    """Serves until SIGTERM, SIGINT or the end of stdin. Raises `UsageError` before it listens."""
    check_key_needed(settings)
    require("the embedded engine", extra="local")
    path = model_path(settings)
    with bind_port(settings) as sock:
        return _serve(settings, path, sock)


def _serve(settings: ServeSettings, path: Path, sock: socket.socket) -> int:
    end_at_once()
    if settings.until_stdin_closes:
        end_with_stdin()
    stage = partial(report_stage, settings)
    stage("importing torch and transformers")
    import torch

    from holdfast.embedded.model import load
    from holdfast.embedded.scheduler.engine import DecodeEngine

    torch.set_num_threads(settings.threads)
    _silence_progress_bars()
    stage(f"loading {path.name}")
    model = load.load(path, max_length=settings.max_length)
    stage("checking that batches change no results")
    engine = DecodeEngine(
        model,
        max_batch=settings.max_batch,
        max_waiting=settings.max_waiting,
        version=settings.version,
    )
    with engine:
        name = settings.name or path.resolve().name
        if engine.model.solo:
            slow = f"{name} runs one sequence at a time, and slower for it: {engine.model.why_solo}"
            note(slow)
            if settings.progress:
                print(f"{NOTE}{slow}", flush=True)  # noqa: T201
        asyncio.run(_listen(engine, settings, sock=sock, name=name))
    if engine.failure is not None:
        traceback.print_exception(engine.failure)
        return 1
    return 0


async def _listen(engine: Any, settings: ServeSettings, *, sock: socket.socket, name: str) -> None:
    from aiohttp import web

    from holdfast.embedded.http.server import Server

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    engine.on_failure = lambda: loop.call_soon_threadsafe(stop.set)
    for number in SIGNALS:
        loop.add_signal_handler(number, stop.set)
    log = _log_request if settings.log_requests else None
    port = sock.getsockname()[1]
    token = LoopbackToken(port) if settings.api_key is None else None
    server = Server(
        engine,
        served=name,
        api_key=settings.api_key,
        token="" if token is None else token.value,
        log=log,
    )
    runner = web.AppRunner(
        server.application(),
        access_log=None,
        handler_cancellation=True,
        shutdown_timeout=_SHUTDOWN_SECONDS,
        auto_decompress=False,
    )
    await runner.setup()
    try:
        try:
            await web.SockSite(runner, sock, backlog=_BACKLOG).start()
        except OSError as error:  # Another process has bound the same port and listened first.
            raise port_error(settings, error) from error
        host, port = runner.addresses[0][:2]
        print(f"serving {name} at http://{bracket(host)}:{port}", flush=True)  # noqa: T201
        if token is not None and not settings.progress:
            note(f"the token that changes weights is in {token_file(port)}")
        await stop.wait()
        # The engine closes first, so that requests in flight are answered with their tokens so far.
        await asyncio.to_thread(engine.close)
    finally:
        await runner.cleanup()
        if token is not None:
            token.close()


def report_stage(settings: ServeSettings, stage: str) -> None:
    """Reports a stage to the parent or to people, because a start may take so long that it looks
    hung."""
    if settings.progress:
        print(f"{STARTING}{stage}", flush=True)  # noqa: T201
    else:
        note(f"{stage} …")


def note(text: str) -> None:
    print(f"holdfast: {text}", file=sys.stderr, flush=True)  # noqa: T201


def _log_request(request_id: str) -> None:
    # The client chooses the id, so `repr` keeps any id on one line.
    print(f"request {request_id!r}", file=sys.stderr, flush=True)  # noqa: T201


def bind_port(settings: ServeSettings) -> socket.socket:
    """Returns a socket that has its port and does not listen yet."""
    sock = socket.socket(socket.AF_INET6 if ":" in settings.host else socket.AF_INET)
    try:
        # A server that was just killed still has connections that are closing.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if sock.family is socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((settings.host, settings.port))
    except OSError as error:
        sock.close()
        raise port_error(settings, error) from error
    return sock


def port_error(settings: ServeSettings, error: OSError) -> UsageError:
    return UsageError(
        f"cannot listen on {settings.host}:{settings.port} ({error.strerror}); --port 0 takes a "
        "free one"
    )


def check_key_needed(settings: ServeSettings) -> None:
    if settings.api_key is None and not is_loopback(settings.host):
        raise UsageError(
            f"--host {settings.host} can be reached from other machines: name the environment "
            "variable that holds a key with --api-key-env"
        )


def bracket(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def model_path(settings: ServeSettings) -> Path:
    path = settings.model or TINY
    if not path.is_dir():
        what = "--model" if settings.model else "the model that comes with holdfast"
        raise UsageError(f"{what}: there is no folder {path}")
    files.check(path)
    return path.resolve()


def _silence_progress_bars() -> None:
    """Turns off progress bars, because stderr is a log."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


def end_at_once() -> None:
    """Makes SIGTERM and SIGINT end this process at once from now on."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)


def end_with_stdin() -> None:
    """Makes the end of stdin act like SIGTERM from now on. No data is expected on stdin."""
    # Once the handlers are removed, a second signal would kill a clean exit.
    signalled = _signal_from_kernel()
    follow = threading.Thread(target=_follow, args=[signalled], name="holdfast-stdin", daemon=True)
    follow.start()


def _signal_from_kernel() -> bool:
    if not hasattr(fcntl, "F_SETSIG") or not stat.S_ISFIFO(os.fstat(0).st_mode):
        # Only Linux has this signal, and only pipes end. Otherwise only the thread watches.
        return False
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(0, fcntl.F_SETSIG, signal.SIGTERM)
    fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)
    poll = select.poll()
    poll.register(0, 0)
    if poll.poll(0):  # stdin ended before the signal was set up.
        os.kill(os.getpid(), signal.SIGTERM)
    return True


def _follow(signalled: bool) -> None:
    while os.read(0, 4096):
        pass
    if not signalled:
        os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_STOP_SECONDS)
    os._exit(0)
