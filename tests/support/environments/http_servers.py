"""An environment's server as a process that can be killed, and a line that loses answers."""

import asyncio
import os
import subprocess
import sys
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path

from holdfast.environments.http.environment import HttpEnvironment
from holdfast.environments.http.server import EnvironmentServer
from holdfast.private_files import write_private
from holdfast.server_tokens import LoopbackToken, known_token, token_file
from support.environments.http_worlds import Ledger

WORLDS = Path(__file__).parent / "http_worlds.py"


@asynccontextmanager
async def opened(url: str, *, seed: int = 0, **options):
    environment = HttpEnvironment(url, **options)
    try:
        await environment.reset(seed=seed)
        yield environment
    finally:
        await environment.close()


def serving(scenario, make=Ledger, **options):
    """Runs `scenario(server)`, and finds nothing left of it."""

    async def run():
        async with EnvironmentServer(make, **options) as server:
            result = await scenario(server)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return result

    return asyncio.run(run())


class ServerProcess:
    """`python -m holdfast.environments.serving` as a child."""

    def __init__(self, make: str, *options: str, env: dict[str, str] | None = None):
        self._make = make
        self._options = options
        self._env = {**os.environ, **(env or {})}
        self._port = 0
        self.url = ""
        self._child: subprocess.Popen[str] | None = None

    def __enter__(self) -> "ServerProcess":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        command = [sys.executable, "-m", "holdfast.environments.serving", f"{WORLDS}:{self._make}"]
        command += ["--port", str(self._port), "--until-stdin-closes", *self._options]
        pipe = subprocess.PIPE
        self._child = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=self._env)
        message = self._child.stdout.readline()
        self.url = message.split()[-1]
        self._port = int(self.url.rpartition(":")[2])

    def kill(self) -> None:
        self._child.kill()
        self._end()

    def restart(self) -> None:
        """Killed, and started again at the same address."""
        self.kill()
        self.start()

    def stop(self) -> int:
        return self._end()

    def _end(self) -> int:
        self._child.stdin.close()
        code = self._child.wait(60)
        self._child.stdout.close()
        return code


class Line:
    """What stands between client and server. Each answer to a request that holds one of `lose` is
    lost: the server has given it, and the client's connection breaks."""

    def __init__(self, target: str):
        host, _, port = target.removeprefix("http://").partition(":")
        self._target = host, int(port)
        self.url = ""
        self.lose: list[bytes] = []
        self.requests = 0

    @asynccontextmanager
    async def open(self):
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        # Clients look for the token at the port that they know.
        if (token := known_token(f"http://127.0.0.1:{self._target[1]}")) is not None:
            write_private(token_file(port), token.encode())
        try:
            with nullcontext() if token is None else LoopbackToken(port):
                yield self
        finally:
            server.close()
            await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(*self._target)
        try:
            while request := await reader.read(1 << 16):
                self.requests += 1
                back.write(request)
                answer = await there.read(1 << 16)
                lost = next((item for item in self.lose if item in request), None)
                if lost is not None:
                    self.lose.remove(lost)
                    writer.transport.abort()
                    return
                writer.write(answer)
        finally:
            for end in (writer, back):
                end.close()
