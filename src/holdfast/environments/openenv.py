"""OpenEnvEnvironment: an environment behind an OpenEnv server, through OpenEnv's own client.

Each episode is one session: a websocket that begins with `reset`. If the connection is lost, or a
call gets no response, the session is over and the environment is broken. Its recovery level then
says how a new session reaches the same state. A lost connection is not reopened within an episode,
because the server would begin a new one.
"""

import asyncio
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from holdfast.environments import replies
from holdfast.extras import needed_by
from holdfast.records.errors import EnvironmentBroken, ToolSaysNo, UsageError
from holdfast.rollout.episodes.environment import (
    DEFAULT_TIMEOUT,
    Environment,
    Observation,
    Recovery,
)

with needed_by("OpenEnvEnvironment", extra="openenv"):
    from openenv.core.env_client import EnvClient
    from openenv.core.generic_client import GenericEnvClient
    from openenv.core.sync_client import SyncEnvClient
    from websockets.exceptions import ConnectionClosed

DEFAULT_PATIENCE = 60.0
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.1, 2.0
"""The first and the longest pause between two tries to reach a server that is down or full."""
_FULL = "(code: CAPACITY_REACHED)"
_INVALID_ACTION = "(code: VALIDATION_ERROR)"


def as_json(observation: object) -> str:
    """Formats an observation as one line of JSON, without `done`, `reward` and `metadata`.

    Do not rename this function: its name is in the recorded identity of environments.
    """
    dump = getattr(observation, "model_dump", None)
    if callable(dump):
        observation = dump(mode="json", exclude={"done", "reward", "metadata"})
    return msgspec.json.encode(observation).decode()


class OpenEnvEnvironment(Environment):
    """An environment behind an OpenEnv server.

    `client` is an OpenEnv client class, or a function that creates a client from `base_url`.

    - `action`: a function from the policy's reply to the argument of the client's `step`. It raises
      `ValueError` (as pydantic's validation does) or `ToolSaysNo` if the reply is not an action. By
      default, the reply's only JSON object.
    - `observe`: a function from an observation to the text for the policy. By default, JSON.
    - `instructions`: how to act; added once, below the first observation.
    - `reset_with`: arguments of the server's `reset`, besides the seed.
    - `patience`: how many seconds to wait for a server that is down or has no free session.

    The environment recovers by replay, so the server must give the same answers to the same seed
    and actions.
    """

    def __init__(
        self,
        base_url: str,
        *,
        client: Callable[..., object] = GenericEnvClient,
        action: Callable[[str], object] = replies.json_object,
        observe: Callable[[Any], str] = as_json,
        instructions: str = "",
        reset_with: Mapping[str, object] | None = None,
        recovery: Recovery | str = Recovery.REPLAY,
        timeout: float = DEFAULT_TIMEOUT,
        patience: float = DEFAULT_PATIENCE,
    ):
        if recovery == Recovery.SNAPSHOT:
            raise UsageError(
                "OpenEnv has no snapshots: choose 'replay', 'stateless' or 'restart' as recovery"
            )
        self.base_url = base_url
        self.recovery = recovery
        self.timeout = timeout
        self.patience = patience
        self._create = client
        self._read = action
        self._observe = observe
        self._instructions = instructions
        self._reset_with = dict(reset_with or {})
        self._client: EnvClient[Any, Any, Any] | None = None
        self._is_waiting = False
        """True while a call has no response, even after its caller gave up."""

    @property
    def identity(self) -> str:
        # The address does not count, because the same environment may come back elsewhere.
        functions = [*map(replies.function_name, (self._create, self._read, self._observe))]
        settings = (functions, self._instructions, self._reset_with)
        return msgspec.json.encode(settings, order="sorted").decode()

    async def reset(self, *, seed: int) -> Observation:
        loop = asyncio.get_running_loop()
        deadline, pause = loop.time() + self.patience, _FIRST_PAUSE_SECONDS
        while True:
            await self.close()
            self._client = client = self._new_client()
            try:
                result = await client.reset(seed=seed, **self._reset_with)
            except (ConnectionError, ConnectionClosed, RuntimeError) as error:
                if isinstance(error, RuntimeError) and _FULL not in str(error):
                    raise
                if loop.time() + pause > deadline:
                    raise EnvironmentBroken(
                        f"no session at {self.base_url} within {self.patience:g} s: {error}"
                    ) from error
            else:
                return replies.with_instructions(self._observation(result), self._instructions)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE_SECONDS)

    async def step(self, action: str) -> Observation:
        parsed = replies.apply_reader(self._read, action)
        client = self._client
        if client is None or self._is_waiting:
            raise EnvironmentBroken(f"there is no session at {self.base_url} any more")
        # A late response must not be read as the response to the next call.
        self._is_waiting = True
        try:
            result = await client.step(parsed)
        except RuntimeError as error:
            if _INVALID_ACTION not in str(error):
                raise
            self._is_waiting = False
            raise ToolSaysNo(
                "Nothing happened: the environment does not accept this action. Check the names "
                "and the types of its fields."
            ) from error
        self._is_waiting = False
        return self._observation(result)

    async def close(self) -> None:
        client, self._client, self._is_waiting = self._client, None, False
        if client is not None:
            await client.close()

    def _new_client(self) -> "EnvClient[Any, Any, Any]":
        options: dict[str, object] = {"base_url": self.base_url}
        if isinstance(self._create, type) and issubclass(self._create, EnvClient):
            # The client's own default is a minute, which may be shorter than `timeout`.
            known = inspect.signature(self._create).parameters
            options |= {"message_timeout_s": self.timeout} if "message_timeout_s" in known else {}
        client = self._create(**options)
        if isinstance(client, SyncEnvClient):
            client = client.async_client
        if not isinstance(client, EnvClient):
            raise UsageError(
                f"`client` made {client!r:.200}, which is not an OpenEnv client: give a class of "
                "clients, or a function that creates one"
            )
        return client

    def _observation(self, result: Any) -> Observation:
        reward = 0.0 if result.reward is None else float(result.reward)
        return Observation(self._observe(result.observation), reward, bool(result.done))
