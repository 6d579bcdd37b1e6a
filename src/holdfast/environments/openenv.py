"""OpenEnvEnvironment: an environment behind an OpenEnv server, through its own client.

Each episode is one session: a websocket that begins with `reset`. When it is lost, or a call stays
without an answer, the session is gone, and nothing more is asked of it: the environment broke, and
its recovery level says how another session gets there. Never reconnects within an episode, since
the server would begin another one.
"""

import asyncio
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from holdfast.environments import replies
from holdfast.records.errors import EnvironmentBroken, ToolSaysNo, UsageError
from holdfast.rollout.episodes.environment import (
    DEFAULT_TIMEOUT,
    Environment,
    Observation,
    Recovery,
)

try:
    from openenv.core.env_client import EnvClient
    from openenv.core.generic_client import GenericEnvClient
    from openenv.core.sync_client import SyncEnvClient
    from websockets.exceptions import ConnectionClosed
except ImportError as missing:
    raise UsageError(
        f"OpenEnvEnvironment needs openenv-core ({missing}); install it with: "
        "pip install '.[openenv]' (in the clone)"
    ) from missing

DEFAULT_PATIENCE = 60.0
_POLL = 0.1, 2.0
"""Seconds between two looks at a server that is not there or full: at first, and at most."""
_FULL = "(code: CAPACITY_REACHED)"
_REFUSED = "(code: VALIDATION_ERROR)"


def as_json(observation: object) -> str:
    """An observation, typed or not, as one line of JSON; what is no news to a policy left out."""
    dump = getattr(observation, "model_dump", None)
    if callable(dump):
        observation = dump(mode="json", exclude={"done", "reward", "metadata"})
    return msgspec.json.encode(observation).decode()


class OpenEnvEnvironment(Environment):
    """`client` is a class of OpenEnv clients, or a function that makes one from `base_url`.

    - `action`: what the client's `step` is given, from the policy's reply; it raises `ValueError`
      (as pydantic's validation does) or `ToolSaysNo` where the reply is no action. By default, the
      one JSON object in the reply.
    - `observe`: what the policy is shown of an observation. By default, JSON.
    - `instructions`: how to act; shown once, below the first observation.
    - `reset_with`: what else the server's `reset` is given, besides the seed.
    - `patience`: seconds that a server that is down, or has no free session, is waited for.

    Comes back by replay: the server has to give the same answers to the same seed and actions.
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
        self._make = client
        self._read = action
        self._observe = observe
        self._instructions = instructions
        self._reset_with = dict(reset_with or {})
        self._client: EnvClient[Any, Any, Any] | None = None
        self._unanswered = False

    @property
    def identity(self) -> str:
        # Not the address: the same environment may come back elsewhere.
        functions = [_name_of(one) for one in (self._make, self._read, self._observe)]
        every = (functions, self._instructions, self._reset_with)
        return msgspec.json.encode(every, order="sorted").decode()

    async def reset(self, *, seed: int) -> Observation:
        loop = asyncio.get_running_loop()
        deadline, pause = loop.time() + self.patience, _POLL[0]
        while True:
            await self.close()
            self._client = client = self._made()
            try:
                result = await client.reset(seed=seed, **self._reset_with)
            except (ConnectionError, ConnectionClosed, RuntimeError) as error:
                if not _may_be_there_later(error):
                    raise
                if loop.time() + pause > deadline:
                    raise EnvironmentBroken(
                        f"no session at {self.base_url} within {self.patience:g} s: {error}"
                    ) from error
            else:
                seen = self._seen(result)
                text = f"{seen.text}\n\n{self._instructions}".strip()
                return msgspec.structs.replace(seen, text=text)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _POLL[1])

    async def step(self, action: str) -> Observation:
        understood = replies.understood(self._read, action)
        client = self._client
        if client is None or self._unanswered:
            raise EnvironmentBroken(f"there is no session at {self.base_url} any more")
        # An answer that came after we stopped waiting would be taken for the next one's.
        self._unanswered = True
        try:
            result = await client.step(understood)
        except RuntimeError as error:
            if _REFUSED not in str(error):
                raise
            self._unanswered = False
            raise ToolSaysNo(
                "Nothing happened: the environment does not accept this action. Check the names "
                "and the types of its fields."
            ) from error
        self._unanswered = False
        return self._seen(result)

    async def close(self) -> None:
        client, self._client, self._unanswered = self._client, None, False
        if client is not None:
            await client.close()

    def _made(self) -> "EnvClient[Any, Any, Any]":
        options: dict[str, object] = {"base_url": self.base_url}
        if isinstance(self._make, type) and issubclass(self._make, EnvClient):
            # Its own limit of a minute would end calls that have longer here.
            known = inspect.signature(self._make).parameters
            options |= {"message_timeout_s": self.timeout} if "message_timeout_s" in known else {}
        client = self._make(**options)
        if isinstance(client, SyncEnvClient):
            client = client.async_client
        if not isinstance(client, EnvClient):
            raise UsageError(
                f"`client` made {client!r:.200}, which is no OpenEnv client: give a class of "
                "clients, or a function that makes one"
            )
        return client

    def _seen(self, result: Any) -> Observation:
        reward = 0.0 if result.reward is None else float(result.reward)
        return Observation(self._observe(result.observation), reward, bool(result.done))


def _may_be_there_later(error: Exception) -> bool:
    return not isinstance(error, RuntimeError) or _FULL in str(error)


def _name_of(function: object) -> str:
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)
