"""McpGymEnvironment: one episode of an MCP gym.

Actions are calls of MCP tools; rewards and the end of the episode come over plain HTTP beside them
(the *control plane*). What is not answered there in time is a broken environment, never a reward of
0 (I5). The episode comes back by replay: a new session with the same seed.
"""

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.environments.mcp.connection import Http
from holdfast.environments.mcp.listing import McpTool
from holdfast.environments.mcp.server import McpServer
from holdfast.environments.mcp.session import CLOSE_SECONDS, McpSession
from holdfast.evaluation.processors.gym.server import GymServer
from holdfast.records.errors import EnvironmentBroken
from holdfast.rollout.episodes.environment import Environment, Observation, Recovery, as_number
from holdfast.rollout.tools.tool import Function, Tool

if TYPE_CHECKING:
    import aiohttp

TIMEOUT = 60.0
_LARGEST_SEED = 2**31 - 1


class Gym:
    """A gym's server and its tools, for all trajectories."""

    def __init__(self, server: GymServer, *, timeout: float = TIMEOUT):
        self.server = server
        self.timeout = timeout
        self._tools: tuple[McpTool, ...] | None = None
        self._listing = asyncio.Lock()

    async def tools(self) -> tuple[McpTool, ...]:
        async with self._listing:
            if self._tools is None:
                url = await self.server.url()
                listing = McpServer.http(f"{url}/mcp", recovery="replay", timeout=self.timeout)
                self._tools = await listing.tools()
        return self._tools

    @property
    def listed(self) -> tuple[McpTool, ...]:
        assert self._tools is not None, "the environment was prepared"
        return self._tools


class McpGymEnvironment(Environment):
    """`context` is what the data set says about the episode; its `seed` goes before ours."""

    recovery = Recovery.REPLAY
    earns = True

    def __init__(
        self, gym: Gym, *, row: str, context: Mapping[str, object] | None = None, model: str = ""
    ):
        self._gym = gym
        self._row = row
        self._context = dict(context or {})
        self._model = model
        # A session may have to be ended, and another begun, before a call is answered.
        self.timeout = 3 * gym.timeout + 2 * CLOSE_SECONDS
        self._session: McpSession | None = None
        self._http: aiohttp.ClientSession | None = None
        self._name = ""
        self._url = ""

    @property
    def identity(self) -> str:
        """Where the gym runs does not matter; what the data set asks of it does."""
        return msgspec.json.encode(self._context, order="sorted").decode()

    async def prepare(self) -> None:
        await self._gym.tools()

    @property
    def tools(self) -> Sequence[Tool]:
        return [
            Tool.from_schema(
                one.name,
                one.description,
                one.parameters,
                self._function(one),
                timeout=self.timeout,
            )
            for one in self._gym.listed
        ]

    async def reset(self, *, seed: int) -> Observation:
        import aiohttp

        await self.close()
        self._url = await self._gym.server.url()
        # A name that no other attempt has: what one left behind is nobody else's beginning.
        self._name = secrets.token_hex(16)
        wanted = self._seed(seed)
        self._http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(self._gym.timeout))
        self._session = await McpSession.open(
            Http(f"{self._url}/mcp"),
            timeout=self._gym.timeout,
            handshake=True,
            introduction={"_extra": self._introduction(wanted)},
        )
        # The first look makes the session; then it is begun anew, with the seed.
        await self._asked("GET", "initial_state")
        await self._asked("POST", "reset_session", {"seed": wanted})
        state = await self._asked("GET", "initial_state")
        return Observation(msgspec.json.encode(state).decode())

    async def close(self) -> None:
        session, self._session = self._session, None
        http, self._http = self._http, None
        if session is not None:
            await session.close()
        if http is not None:
            await http.close()

    def _seed(self, seed: int) -> int:
        given = self._context.get("seed")
        return given if isinstance(given, int) else seed % _LARGEST_SEED + 1

    def _introduction(self, seed: int) -> dict[str, object]:
        return {
            "session_id": self._name,
            "seed": seed,
            "config": self._context,
            "dataset_row_id": self._row,
            "model_id": self._model,
        }

    def _function(self, tool: McpTool) -> Function:
        async def call(**arguments: object) -> Observation:
            if self._session is None:
                raise EnvironmentBroken("the gym's session is not open")
            text = await self._session.call(tool.remote, arguments)
            return await self._earned(text)

        return call

    async def _earned(self, text: str) -> Observation:
        """What the control plane says about the step that was just taken."""
        reward = as_number((await self._asked("GET", "reward")).get("reward"))
        status = await self._asked("GET", "status")
        if reward is None or "terminated" not in status:
            raise EnvironmentBroken(
                f"the gym's control plane does not say what was earned: {status!r:.200}"
            )
        return Observation(
            text,
            reward=reward,
            done=bool(status["terminated"]),
            truncated=bool(status.get("truncated", False)),
        )

    async def _asked(
        self, method: str, name: str, body: Mapping[str, object] | None = None
    ) -> dict[str, Any]:
        import aiohttp

        assert self._http is not None, "it was reset"
        where = f"{self._url}/control/{name}"
        headers = {"mcp-session-id": self._name}
        try:
            async with self._http.request(method, where, headers=headers, json=body) as answer:
                said = await answer.read()
        except TimeoutError:
            raise EnvironmentBroken(
                f"the gym did not answer /control/{name} within {self._gym.timeout:g} s"
            ) from None
        except aiohttp.ClientError as error:
            raise EnvironmentBroken(f"the gym's /control/{name} is gone: {error}") from error
        if answer.status != 200:
            told = said[:300].decode("utf-8", "replace")
            raise EnvironmentBroken(f"the gym's /control/{name} answers {answer.status}: {told}")
        return _object(said, name)


def _object(said: bytes, name: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(said)
    except msgspec.DecodeError as error:
        raise EnvironmentBroken(f"the gym's /control/{name} answers no JSON: {error}") from error
    return found if isinstance(found, dict) else {"observation": found}
