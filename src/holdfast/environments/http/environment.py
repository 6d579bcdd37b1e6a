"""Environments that run elsewhere, behind HTTP: in another process, machine or language.

`HttpEnvironment(url)` is enough for an environment that is acted in through `step` and comes back
by replay. Whoever wants its tools, or its recovery level as the server declares it, asks once:

    endpoint = await EnvironmentEndpoint.describe(url)
    episode = await t.env(endpoint.environment(task={"level": 3}))

Nothing is done twice in the world behind it: each action carries its index, and an answer that was
lost on the way is given again.
"""

import asyncio
import math
import secrets
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from holdfast.environments.http.connection import TRIES, HttpConnection, LostSession
from holdfast.environments.http.protocol import (
    PROTOCOL,
    Began,
    Begin,
    Description,
    EnvironmentAnswer,
    EnvironmentCall,
    Step,
    ToolDescription,
)
from holdfast.records.errors import EnvironmentBroken, ToolSaysNo, UsageError
from holdfast.rollout.episodes.environment import (
    DEFAULT_TIMEOUT,
    Environment,
    Observation,
    Recovery,
    Seen,
)
from holdfast.rollout.tools.tool import KEY_PARAMETER, Tool

DESCRIBE_SECONDS = 30.0
FAREWELL_SECONDS = 10.0
"""How long a session that broke is tried to be ended; the server ends idle ones by itself."""
_SHARE = 0.98
"""Of its time, so that the error is this one, which can say why, and not the caller's."""
_EVIDENCE = 300
Said = TypeVar("Said")


class HttpEnvironment(Environment):
    """One session of a server, opened by `reset` or `restore` and ended by `close`.

    `task` is JSON that the server makes the environment from. `timeout` bounds each call, with
    everything that is tried again within it. A recovery level other than the server's has to be
    said: on a resume nobody asks the server.
    """

    def __init__(
        self,
        url: str,
        *,
        task: object = None,
        token: str | None = None,
        recovery: Recovery | str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        description: Description | None = None,
    ):
        self._connection = HttpConnection(url, token=token)
        self._task = _as_json(task)
        self._description = description
        self._is_level_given = recovery is not None or description is not None
        self.recovery = _level(recovery, description)
        self.timeout = timeout
        self._tools = tuple(self._tool(one) for one in description.tools) if description else ()
        self._session = ""
        self._index = 0
        self._is_sound = False
        """Whether every request so far has been answered."""
        self._turn = asyncio.Lock()

    @property
    def name(self) -> str:
        return self._description.name if self._description else type(self).__name__

    @property
    def identity(self) -> str:
        """Not the address: a server that is started again may have another one."""
        served = self._description.identity if self._description else ""
        return f"{served}\0{bytes(self._task).decode()}"

    @property
    def tools(self) -> Sequence[Tool]:
        return self._tools

    async def reset(self, *, seed: int) -> Observation:
        began = await self._begin(seed=seed)
        if began.observation is None:
            raise EnvironmentBroken(f"{self._connection.shown} began without an observation")
        return began.observation.observation()

    async def restore(self, state: bytes) -> None:
        await self._begin(restore=state)

    async def step(self, action: str) -> Observation:
        async with self._turn:
            answer = await self._act("step", Step(self._index, action), self.timeout)
            if answer.observation is None:
                raise EnvironmentBroken(f"{self._connection.shown} answered no observation")
            return answer.observation.observation()

    async def snapshot(self) -> bytes:
        async with self._turn:
            self._check_sound()
            return await self._ask("GET", "/snapshot", within=self.timeout)

    async def close(self) -> None:
        try:
            async with self._turn:
                await self._leave()
        finally:
            await self._connection.close()

    # --- sessions

    async def _begin(self, *, seed: int = 0, restore: bytes | None = None) -> Began:
        async with self._turn:
            await self._leave()
            self._session, self._index = secrets.token_urlsafe(16), 0
            asked = Begin(self._session, seed, self._task, restore)
            within = self.timeout * _SHARE
            raw = await self._connection.ask("POST", "/sessions", asked, within=within)
            began = self._read(raw, Began)
            self._check_level(began)
            self._is_sound = True
            return began

    async def _leave(self) -> None:
        """Ends the session, if there is one. One that the server has lost is ended."""
        if not self._session:
            return
        path, was_sound = self._path(), self._is_sound
        self._session, self._is_sound = "", False
        # A session in trouble is not worth much waiting.
        longest, tries = (math.inf, TRIES) if was_sound else (FAREWELL_SECONDS, 1)
        within = min(self.timeout * _SHARE, longest)
        try:
            await self._connection.ask("DELETE", path, within=within, tries=tries)
        except LostSession:
            return

    async def _act(
        self, what: str, asked: Step | EnvironmentCall, within: float
    ) -> EnvironmentAnswer:
        self._check_sound()
        raw = await self._ask("POST", f"/{what}", asked, within=within)
        answer = self._read(raw, EnvironmentAnswer)
        self._index += 1
        if answer.refused is not None:
            raise ToolSaysNo(answer.refused)
        return answer

    async def _ask(self, method: str, what: str, body: object = None, *, within: float) -> bytes:
        # If this is interrupted, nobody knows what the session has seen.
        self._is_sound = False
        path = self._path(what)
        raw = await self._connection.ask(method, path, body, within=within * _SHARE)
        self._is_sound = True
        return raw

    def _path(self, rest: str = "") -> str:
        return f"/sessions/{self._session}{rest}"

    def _check_sound(self) -> None:
        if not self._session:
            raise EnvironmentBroken(f"{self.name} was not reset, or was closed")
        if not self._is_sound:
            raise EnvironmentBroken(f"{self.name}: an earlier call has not come to its end")

    def _check_level(self, began: Began) -> None:
        found = began.recovery
        if found is None or self._is_level_given or found is self.recovery:
            return
        raise UsageError(
            f"the environment at {self._connection.shown} comes back by {found.value!r}: say "
            f"recovery={found.value!r}, or make it with EnvironmentEndpoint.describe"
        )

    def _read(self, raw: bytes, kind: type[Said]) -> Said:
        try:
            return msgspec.json.decode(raw, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            begins = raw[:_EVIDENCE].decode("utf-8", "replace")
            raise EnvironmentBroken(
                f"{self._connection.shown}: the answer cannot be read: {error}. It begins: {begins}"
            ) from error

    # --- tools

    def _tool(self, described: ToolDescription) -> Tool:
        async def call(**arguments: object) -> Seen:
            key = str(arguments.pop(KEY_PARAMETER, "")) if described.wants_key else ""
            return await self._call(described, arguments, key=key)

        tool = Tool.from_schema(
            described.name,
            described.description,
            described.parameters,
            call,
            contract=described.contract,
            timeout=described.timeout,
            max_result=described.max_result,
        )
        tool.wants_key = described.wants_key
        return tool

    async def _call(self, tool: ToolDescription, arguments: dict[str, object], *, key: str) -> Seen:
        async with self._turn:
            given = msgspec.Raw(msgspec.json.encode(arguments))
            asked = EnvironmentCall(self._index, tool.name, given, key)
            answer = await self._act("tool", asked, tool.timeout)
            if answer.observation is not None:
                return answer.observation.observation()
            if answer.content is None:
                raise EnvironmentBroken(f"{self._connection.shown} answered no content")
            return answer.content


class EnvironmentEndpoint:
    """What a server serves, known once; makes the environment of each trajectory from it."""

    def __init__(self, url: str, description: Description, *, token: str | None = None):
        self.url = url
        self.description = description
        self._token = token

    @classmethod
    async def describe(
        cls, url: str, *, token: str | None = None, timeout: float = DESCRIBE_SECONDS
    ) -> "EnvironmentEndpoint":
        """Asks the server what it serves. Not bound to this event loop."""
        connection = HttpConnection(url, token=token)
        try:
            raw = await connection.ask("GET", "/", within=timeout)
        finally:
            await connection.close()
        try:
            description = msgspec.json.decode(raw, type=Description)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise UsageError(f"{connection.shown} serves no environment: {error}") from error
        if description.protocol != PROTOCOL:
            raise UsageError(
                f"{connection.shown} speaks version {description.protocol} of the protocol; this "
                f"Holdfast speaks {PROTOCOL}"
            )
        return cls(url, description, token=token)

    def environment(
        self,
        *,
        task: object = None,
        recovery: Recovery | str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> HttpEnvironment:
        """A new one for each trajectory. Opens nothing."""
        return HttpEnvironment(
            self.url,
            task=task,
            token=self._token,
            recovery=recovery,
            timeout=timeout,
            description=self.description,
        )


def _as_json(task: object) -> msgspec.Raw:
    try:
        return msgspec.Raw(msgspec.json.encode(task, order="deterministic"))
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"an environment's `task` is JSON: {error}") from error


def _level(said: Recovery | str | None, description: Description | None) -> Recovery:
    if said is None:
        return description.recovery if description else Recovery.REPLAY
    try:
        level = Recovery(said)
    except ValueError:
        levels = ", ".join(Recovery)
        raise UsageError(f"{said!r} is no recovery level; there are {levels}") from None
    if level is Recovery.SNAPSHOT and description is not None and not description.snapshots:
        raise UsageError(f"{description.name} has no snapshots; recovery='snapshot' needs them")
    return level
