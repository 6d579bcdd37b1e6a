"""What each request to the stand-in does. Refusals have the real engine's statuses."""

import asyncio
import json
import platform
import re
import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from holdfast.testing.fake_containers.http import FakeRefusal, RawRequest, answer
from holdfast.testing.fake_containers.state import (
    EngineState,
    FakeContainer,
    FakeExec,
    FakeImage,
    pack,
    start_process,
    unpack,
    wait_for,
)

Route = Callable[..., Any]
OUTPUT_SECONDS = 2.0
"""How long the engine still reads output after a command has ended, if other processes keep the
output open, in seconds."""
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class EngineRoutes:
    def __init__(self, state: EngineState):
        self.state = state
        self._routes: list[tuple[str, re.Pattern[str], Route]] = [
            (method, re.compile(pattern), route)
            for method, pattern, route in (
                ("GET", r"/_ping", lambda _: b"OK"),
                ("GET", r"/info", lambda _: INFO),
                ("GET", r"/networks", lambda _: [{"Name": "none"}]),
                ("POST", r"/images/create", self._create_image),
                ("POST", r"/build", self._build),
                ("POST", r"/commit", self._commit),
                ("GET", r"/images/json", self._list_images),
                ("GET", r"/images/(.+)/json", self._show_image),
                ("DELETE", r"/images/(.+)", lambda _, name: state.remove_image(name)),
                ("POST", r"/containers/create", self._create),
                ("GET", r"/containers/json", self._list),
                ("GET", r"/containers/([^/]+)/json", self._show),
                ("GET", r"/containers/([^/]+)/stats", self._stats),
                ("GET", r"/containers/([^/]+)/export", self._export),
                ("POST", r"/containers/([^/]+)/(start|restart|pause|unpause)", self._switch),
                ("POST", r"/containers/([^/]+)/exec", self._new_exec),
                ("DELETE", r"/containers/([^/]+)", self._remove),
                ("GET", r"/exec/([^/]+)/json", self._show_exec),
            )
        ]

    def serve(self, request: RawRequest) -> bytes:
        for method, pattern, route in self._routes:
            if method == request.method and (match := pattern.fullmatch(request.path)):
                return answer(200, route(request, *match.groups()))
        raise FakeRefusal(404, f"page not found: {request.method} {request.path}")

    # --- images

    def _create_image(self, request: RawRequest) -> bytes:
        if request.query.get("fromSrc") == "-":
            root = self.state.new_folder()
            unpack(request.body, root)
            lines = [line.split(" ", 1) for line in request.query["changes"].split("\n") if line]
            pairs = [(word, *rest.split("=", 1)) for word, rest in lines if "=" in rest]
            env = [f"{name}={json.loads(value)}" for word, name, value in pairs if word == "ENV"]
            labels = {name: json.loads(value) for word, name, value in pairs if word == "LABEL"}
            tag = f"{request.query['repo']}:{request.query['tag']}"
            self.state.add_image(root, tag, env=env, labels=labels)
            return b'{"status": "sha256:imported"}\n'
        name = request.query["fromImage"]
        raise FakeRefusal(404, f"pull access denied for {name}, repository does not exist")

    def _build(self, request: RawRequest) -> bytes:
        """Builds an image. Supports only FROM and RUN in the Dockerfile."""
        context = self.state.new_folder()
        unpack(request.body, context)
        lines = (context / "Dockerfile").read_text().splitlines()
        base = self.state.image(lines[0].split()[1])
        root = self.state.copy(base.root)
        output = []
        for number, line in enumerate(lines, 1):
            output.append({"stream": f"Step {number}/{len(lines)} : {line}\n"})
            if line.startswith("RUN"):
                box = FakeContainer("build", "build", base, root, {})
                run = start_process(box, {"Cmd": ["/bin/sh", "-c", line[4:]]}, has_input=False)
                printed, code = run.communicate()[0], run.returncode
                output.append({"stream": printed.decode()})
                if code:
                    output.append({"error": f"The command '{line[4:]}' returned code {code}"})
                    return b"".join(json.dumps(row).encode() + b"\n" for row in output)
        self.state.add_image(root, request.query["t"], env=base.env)
        return b"".join(json.dumps(row).encode() + b"\n" for row in output)

    def _commit(self, request: RawRequest) -> Any:
        container = self.state.container(request.query["container"])
        tag = f"{request.query['repo']}:{request.query['tag']}"
        image = self.state.add_image(
            self.state.copy(container.root),
            tag,
            layers=container.image.layers + 1,
            env=container.env,
            labels=container.body["Labels"],
        )
        return {"Id": image.id}

    def _list_images(self, request: RawRequest) -> Any:
        return [
            {"Id": i.id, "RepoTags": i.tags, "Labels": i.labels, "Created": i.created}
            for i in self.state.images
            if _fits(i.labels, request)
        ]

    def _show_image(self, _: RawRequest, name: str) -> Any:
        image: FakeImage = self.state.image(name)
        layers = [f"sha256:{number}" for number in range(image.layers)]
        return {"Id": image.id, "Architecture": ARCHITECTURE, "RootFS": {"Layers": layers}}

    # --- containers

    def _create(self, request: RawRequest) -> Any:
        name, body = request.query["name"], request.json()
        if any(container.name == name for container in self.state.containers):
            raise FakeRefusal(409, f'Conflict. The container name "/{name}" is already in use')
        image = self.state.image(body["Image"])
        container = FakeContainer(
            uuid4().hex, name, image, self.state.copy(image.root), body, created=time.time()
        )
        self.state.containers.append(container)
        return {"Id": container.id, "Warnings": []}

    def _list(self, request: RawRequest) -> Any:
        return [
            {
                "Names": [f"/{container.name}"],
                "Labels": container.body["Labels"],
                "State": "running" if container.running else "exited",
                "Created": container.created,
            }
            for container in self.state.containers
            if _fits(container.body["Labels"], request)
        ]

    def _show(self, _: RawRequest, name: str) -> Any:
        container = self.state.container(name)
        config = {**container.body, "Env": container.env}
        state = {"Running": container.running, "Paused": container.paused}
        return {"Image": container.image.id, "Config": config, "State": state}

    def _stats(self, _: RawRequest, name: str) -> Any:
        self.state.container(name)
        return {"cpu_stats": {"cpu_usage": {"total_usage": 1_000_000}}}

    def _export(self, _: RawRequest, name: str) -> bytes:
        return pack(self.state.container(name).root)

    def _switch(self, _: RawRequest, name: str, word: str) -> None:
        container = self.state.container(name)
        if word == "restart":
            container.kill()
        container.running = True
        container.paused = word == "pause"

    def _remove(self, _: RawRequest, name: str) -> None:
        self.state.remove_container(self.state.container(name))

    # --- commands

    def _new_exec(self, request: RawRequest, name: str) -> Any:
        container = self.state.container(name)
        if not container.running or container.paused:
            raise FakeRefusal(409, f"Container {name} is not running")
        number = uuid4().hex
        self.state.execs[number] = FakeExec(container, request.json())
        return {"Id": number}

    def _show_exec(self, _: RawRequest, number: str) -> Any:
        if number not in self.state.execs:
            raise FakeRefusal(404, f"No such exec instance: {number}")
        run = self.state.execs[number]
        return {"Running": run.began and run.code is None, "ExitCode": run.code}

    async def run(
        self, number: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Runs a command to its end. Its input and output use the connection."""
        run = self.state.execs[number]
        if not run.container.running:
            writer.write(answer(409, {"message": "container is not running"}))
            return
        if self.state.start_errors:
            run.began, run.code = True, 126
            message = self.state.start_errors.pop(0).encode()
            writer.write(b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n")
            writer.write(frame(message))
            return
        has_input = bool(run.body.get("AttachStdin"))
        process = start_process(run.container, run.body, has_input=has_input)
        run.began = True
        writer.write(b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n")
        tasks = [asyncio.create_task(_print(process, writer))]
        tasks += [asyncio.create_task(_feed(reader, process))] if has_input else []
        try:
            run.code = await wait_for(process)
            await asyncio.wait(tasks[:1], timeout=OUTPUT_SECONDS)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def run_detached(self, number: str) -> None:
        run = self.state.execs[number]
        run.began = True
        process = start_process(run.container, run.body, has_input=False)
        run.code = await wait_for(process)
        process.communicate()


INFO = {
    "Architecture": platform.machine(),
    "CpuCfsQuota": True,
    "MemoryLimit": True,
    "PidsLimit": True,
    "Driver": "overlay2",
}
ARCHITECTURE = ARCHITECTURES.get(platform.machine(), platform.machine())


async def _feed(reader: asyncio.StreamReader, process: Any) -> None:
    loop = asyncio.get_running_loop()
    pipe, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, process.stdin)
    writer = asyncio.StreamWriter(pipe, protocol, None, loop)
    try:
        while part := await reader.read(1 << 16):
            writer.write(part)
            await writer.drain()
    finally:
        pipe.close()


async def _print(process: Any, writer: asyncio.StreamWriter) -> None:
    output = asyncio.StreamReader()
    pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(output), process.stdout
    )
    try:
        while part := await output.read(1 << 16):
            writer.write(frame(part))
            await writer.drain()
    finally:
        pipe.close()


def frame(part: bytes) -> bytes:
    """Returns a piece of output in the format of the real engine."""
    return b"\x01\0\0\0" + len(part).to_bytes(4, "big") + part


def _fits(labels: dict[str, str], request: RawRequest) -> bool:
    wanted = json.loads(request.query.get("filters", "{}")).get("label", [])
    pairs = [text.partition("=") for text in wanted]
    return all(
        name in labels and (not equals or labels[name] == value) for name, equals, value in pairs
    )
