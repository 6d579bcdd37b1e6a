"""An agent that runs as a service: it asks the gateway what its task says, over a real socket."""

import asyncio

import aiohttp
from aiohttp import web


class AgentService:
    """Counts what is started; `trouble` says what goes wrong, by the number of the start."""

    def __init__(self, trouble=None):
        self.trouble = trouble or {}
        self.started: list[tuple[str, int]] = []
        self.stopped: list[str] = []
        self.reports: dict[str, dict] = {}
        self._jobs: set[asyncio.Task] = set()
        self.url = ""

    async def __aenter__(self) -> "AgentService":
        app = web.Application()
        app.router.add_post("/runs", self._start)
        app.router.add_get("/runs/{id}", self._status)
        app.router.add_delete("/runs/{id}", self._stop)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        for job in self._jobs:
            job.cancel()
        await asyncio.gather(*self._jobs, return_exceptions=True)
        await self._runner.cleanup()

    async def _start(self, request: web.Request) -> web.Response:
        body = await request.json()
        number = len(self.started)
        self.started.append((body["trajectory"], body["attempt"]))
        name = f"{body['trajectory'].replace('/', '-')}-{body['attempt']}"
        who = {"trajectory": body["trajectory"], "attempt": body["attempt"]}
        self.reports[name] = {"status": "running", **who}
        if self.trouble.get(number) == "other attempt":
            self.reports[name]["attempt"] += 1
        if self.trouble.get(number) == "other words":
            self.reports[name]["status"] = "done"
        if self.trouble.get(number) == "mute":
            self.reports[name]["status"] = "completed"
            return web.json_response({"id": name}, status=202)
        job = asyncio.create_task(self._work(name, body, self.trouble.get(number)))
        self._jobs.add(job)
        return web.json_response({"id": name}, status=202)

    async def _work(self, name: str, request: dict, trouble: str | None) -> None:
        messages = list(request["task"]["messages"])
        async with aiohttp.ClientSession() as http:
            for _ in range(2):
                body = {"model": request["model"], "messages": messages}
                async with http.post(f"{request['url']}/v1/chat/completions", json=body) as answer:
                    content = (await answer.json())["choices"][0]["message"]["content"]
                messages += [
                    {"role": "assistant", "content": content},
                    {"role": "user", "content": "?"},
                ]
                if trouble == "fails":
                    self.reports[name] |= {"status": "failed", "error": "out of ideas"}
                    return
                if trouble == "hangs":
                    await asyncio.sleep(1_000)
        self.reports[name] |= {"status": "completed", "reward": 0.75, "turns": 2}

    async def _status(self, request: web.Request) -> web.Response:
        return web.json_response(self.reports[request.match_info["id"]])

    async def _stop(self, request: web.Request) -> web.Response:
        self.stopped.append(request.match_info["id"])
        return web.json_response({})
