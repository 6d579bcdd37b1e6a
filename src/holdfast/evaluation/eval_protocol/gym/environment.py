"""McpGymEnvironment is one episode of an MCP gym.

Actions are calls of MCP tools. Rewards and the end of the episode come over plain HTTP (the
*control plane*). If the control plane does not respond, the environment is broken, and the reward
is never taken as 0 (I5). The episode is restored by replay, in a new session with the same seed.
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
from holdfast.evaluation.eval_protocol.gym.server import GymServer
from holdfast.records.errors import EnvironmentBroken
from holdfast.rollout.episodes.environment import Environment, Observation, Recovery, as_number
from holdfast.rollout.tools.tool import Function, Tool

if TYPE_CHECKING:
    import aiohttp

TIMEOUT_SECONDS = 60.0
_MAX_SEED = 2**31 - 1


class Gym:
    """A gym's server and its tools, shared by all trajectories."""

    def __init__(self, server: GymServer, *, timeout: float = TIMEOUT_SECONDS):
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
    """An episode of a gym. `context` is the episode's configuration in the data set. A `seed` in it
    is used instead of Holdfast's seed."""

    recovery = Recovery.REPLAY
    earns = True

    def __init__(self, gym: Gym, *, row: str, context: Mapping[str, object] | None = None):
        self._gym = gym
        self._row = row
        self._context = dict(context or {})
        # A call may have to close one session and open another one first.
        self.timeout = 3 * gym.timeout + 2 * CLOSE_SECONDS
        self._session: McpSession | None = None
        self._http: aiohttp.ClientSession | None = None
        self._name = ""
        self._url = ""

    @property
    def identity(self) -> str:
        """The configuration from the data set as text. The gym's address is not part of it."""
        return msgspec.json.encode(self._context, order="sorted").decode()

    async def prepare(self) -> None:
        await self._gym.tools()

    @property
    def tools(self) -> Sequence[Tool]:
        return [
            Tool.from_schema(
                tool.name,
                tool.description,
                tool.parameters,
                self._function(tool),
                timeout=self.timeout,
            )
            for tool in self._gym.listed
        ]

    async def reset(self, *, seed: int) -> Observation:
        import aiohttp

        await self.close()
        self._url = await self._gym.server.url()
        # A new name for each attempt, so that no attempt gets another one's state.
        self._name = secrets.token_hex(16)
        session_seed = self._choose_seed(seed)
        self._http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(self._gym.timeout))
        self._session = await McpSession.open(
            Http(f"{self._url}/mcp"),
            timeout=self._gym.timeout,
            handshake=True,
            introduction={
                "_extra": {
                    "session_id": self._name,
                    "seed": session_seed,
                    "config": self._context,
                    "dataset_row_id": self._row,
                    "model_id": "",
                }
            },
        )
        # The first request creates the session. The second one resets it with the seed.
        await self._request("GET", "initial_state")
        await self._request("POST", "reset_session", {"seed": session_seed})
        state = await self._request("GET", "initial_state")
        return Observation(msgspec.json.encode(state).decode())

    async def close(self) -> None:
        session, self._session = self._session, None
        http, self._http = self._http, None
        if session is not None:
            await session.close()
        if http is not None:
            await http.close()

    def _choose_seed(self, seed: int) -> int:
        own_seed = self._context.get("seed")
        return own_seed if isinstance(own_seed, int) else seed % _MAX_SEED + 1

    def _function(self, tool: McpTool) -> Function:
        async def call(**arguments: object) -> Observation:
            if self._session is None:
                raise EnvironmentBroken("the gym's session is not open")
            text = await self._session.call(tool.remote, arguments)
            return await self._observe(text)

        return call

    async def _observe(self, text: str) -> Observation:
        """Returns the observation of a step, with the control plane's reward and status."""
        reward = as_number((await self._request("GET", "reward")).get("reward"))
        status = await self._request("GET", "status")
        if reward is None or "terminated" not in status:
            raise EnvironmentBroken(
                f"the gym's control plane reports no reward or status: {status!r:.200}"
            )
        return Observation(
            text,
            reward=reward,
            done=bool(status["terminated"]),
            truncated=bool(status.get("truncated", False)),
        )

    async def _request(
        self, method: str, name: str, body: Mapping[str, object] | None = None
    ) -> dict[str, Any]:
        import aiohttp

        assert self._http is not None, "it was reset"
        where = f"{self._url}/control/{name}"
        headers = {"mcp-session-id": self._name}
        try:
            async with self._http.request(method, where, headers=headers, json=body) as response:
                body_bytes = await response.read()
        except TimeoutError:
            raise EnvironmentBroken(
                f"the gym did not answer /control/{name} within {self._gym.timeout:g} s"
            ) from None
        except aiohttp.ClientError as error:
            raise EnvironmentBroken(f"the gym's /control/{name} is gone: {error}") from error
        if response.status != 200:
            text = body_bytes[:300].decode("utf-8", "replace")
            raise EnvironmentBroken(f"the gym's /control/{name} answers {response.status}: {text}")
        return _decode_object(body_bytes, name)


def _decode_object(body: bytes, name: str) -> dict[str, Any]:
    try:
        decoded = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise EnvironmentBroken(f"the gym's /control/{name} answers no JSON: {error}") from error
    return decoded if isinstance(decoded, dict) else {"observation": decoded}
