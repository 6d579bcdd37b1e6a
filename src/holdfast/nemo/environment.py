"""`HoldfastEnvironment` makes any `holdfast.Environment` an environment of NeMo-RL.

NeMo samples, keeps its own records, and calls the environment once per turn. NeMo's metadata holds
all actions of an episode, so that no state exists only in this process. If an actor died, or if
NeMo repeats a step, a new environment gets the same actions again, and each of its answers is
compared with the earlier answer.
"""

import asyncio
import hashlib
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

import torch
from msgspec import Struct
from nemo_rl.environments.interfaces import EnvironmentInterface, EnvironmentReturn

from holdfast.delivery.thread import LoopThread
from holdfast.records.encoding.declared import checks_arguments
from holdfast.records.errors import EnvironmentBroken, UsageError
from holdfast.rollout.episodes.environment import Environment, Observation, Recovery
from holdfast.rollout.episodes.guarded import GuardedEnvironment, check_usable, recovery_of
from holdfast.rollout.replay.session import AttemptState

KEY = "holdfast"
"""The key of the episode in NeMo's metadata."""
MAX_LIVE = 1024
TRIES = 3
"""How often a turn is tried if its environment breaks. Each try uses a new environment."""
Metadata = Mapping[str, Any]


class HoldfastEnvironment(EnvironmentInterface):  # type: ignore[misc] # NeMo has no types here.
    """A NeMo environment for one Ray actor: `ray.remote(HoldfastEnvironment).remote(make)`.

    `make` gets a row's metadata (NeMo's `extra_env_info`) and returns its environment. The
    environment is reset with the metadata's `seed`, or 0. The row's prompt must contain the first
    observation, which `first_observation` returns, because NeMo samples the first turn before it
    calls the environment.
    """

    @checks_arguments()
    def __init__(
        self,
        make: Callable[[Metadata], Environment],
        *,
        stop_strings: Sequence[str] | None = None,
        max_live: int = MAX_LIVE,
    ):
        """`stop_strings` are the stop strings of every later turn. At most `max_live` environments
        stay open, because NeMo does not say when it gives up an episode. If an environment was
        closed too early, a new one replaces it."""
        if max_live < 1:
            raise UsageError(f"max_live is a number of environments from 1, not {max_live!r:.100}")
        self._make = make
        self._stop_strings = None if stop_strings is None else list(stop_strings)
        self._max_live = max_live
        self._live: OrderedDict[str, _Episode] = OrderedDict()
        self._thread = LoopThread("holdfast environments")
        self._made_anew = 0
        self._rejected = 0

    # --- what NeMo calls

    def step(
        self, message_log_batch: Sequence[Sequence[Mapping[str, Any]]], metadata: Sequence[Any]
    ) -> Any:
        """Takes one turn in each episode. Raises `EnvironmentBroken` if an environment failed
        permanently, because such a failure must not become a reward."""
        turns = self._thread.call(self._step(message_log_batch, metadata))
        return EnvironmentReturn(
            observations=[
                {"role": "environment", "content": turn.observation.text} for turn in turns
            ],
            metadata=[turn.metadata for turn in turns],
            next_stop_strings=[self._stop_strings for _ in turns],
            rewards=torch.tensor([turn.observation.reward for turn in turns], dtype=torch.float32),
            terminateds=torch.tensor([turn.observation.over for turn in turns], dtype=torch.bool),
            answers=[None for _ in turns],
        )

    def global_post_process_and_metrics(self, batch: Any) -> tuple[Any, dict[str, float]]:
        """Returns the batch unchanged, with the metrics of episodes since the last call."""
        metrics = {
            "holdfast/mean_reward": float(torch.as_tensor(batch["total_reward"]).float().mean()),
            "holdfast/environments_made_anew": float(self._made_anew),
            "holdfast/actions_rejected": float(self._rejected),
        }
        self._made_anew = self._rejected = 0
        return batch, metrics

    def shutdown(self) -> None:
        """Closes every environment."""
        if self._thread.is_running:
            self._thread.close(self._close_all())

    def first_observation(self, metadata: Metadata) -> str:
        """Returns the observation from the environment's reset, for the row's prompt."""
        return self._thread.call(self._first(metadata))

    # --- in the event loop

    async def _first(self, metadata: Metadata) -> str:
        episode = _Episode(self._make(metadata))
        try:
            return (await episode.begin(_seed(metadata))).text
        finally:
            await episode.close()

    async def _step(
        self, logs: Sequence[Sequence[Mapping[str, Any]]], metadata: Sequence[Any]
    ) -> "list[_Turn]":
        pairs = zip(logs, metadata, strict=True)
        turns = await asyncio.gather(
            *(self._turn(log, row) for log, row in pairs), return_exceptions=True
        )
        done = []
        for turn in turns:
            if isinstance(turn, BaseException):
                raise turn
            done.append(turn)
        return done

    async def _turn(self, log: Sequence[Mapping[str, Any]], row: Any) -> "_Turn":
        if not isinstance(row, Mapping):
            raise UsageError(
                f"extra_env_info of a row is a dict, which the environment is made of, not "
                f"{row!r:.100}"
            )
        past = _Past.of(row.get(KEY))
        action = _action(log)
        seen = await self._act(row, past, action)
        self._rejected += bool(seen.error)
        if seen.over:
            await self._drop(past.episode)
            return _Turn(seen, None)
        return _Turn(seen, {**row, KEY: past.after(action, seen)})

    async def _act(self, row: Metadata, past: "_Past", action: str) -> Observation:
        for _ in range(TRIES - 1):
            try:
                return await self._act_once(row, past, action)
            except EnvironmentBroken:
                continue
        return await self._act_once(row, past, action)

    async def _act_once(self, row: Metadata, past: "_Past", action: str) -> Observation:
        """Acts once, in an environment whose state is exactly the state in the metadata. This
        environment cannot be closed during the action."""
        episode = self._live.pop(past.episode, None)
        if episode is None or episode.done != len(past.actions):
            if episode is not None:
                await episode.close()
            self._made_anew += bool(past.actions)
            episode = _Episode(self._make(row))
            await self._come_back(episode, row, past)
        try:
            seen = await episode.step(action)
        except BaseException:
            await episode.close()
            raise
        self._live[past.episode] = episode
        while len(self._live) > self._max_live:
            _, oldest = self._live.popitem(last=False)
            await oldest.close()
        return seen

    async def _come_back(self, episode: "_Episode", row: Metadata, past: "_Past") -> None:
        try:
            await episode.come_back(_seed(row), past)
        except BaseException:
            await episode.close()
            raise

    async def _drop(self, name: str) -> None:
        if (episode := self._live.pop(name, None)) is not None:
            await episode.close()

    async def _close_all(self) -> None:
        async with AsyncExitStack() as stack:
            while self._live:
                _, episode = self._live.popitem()
                stack.push_async_callback(episode.close)


class _Turn(Struct, frozen=True):
    observation: Observation
    metadata: dict[str, Any] | None
    """The metadata for the next turn, or None if the episode is over."""


class _Past(Struct, frozen=True):
    """The past actions of an episode, with the digest of the answer to each action."""

    episode: str
    actions: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()

    @classmethod
    def of(cls, past: Any) -> "_Past":
        if past is None:
            return cls(uuid.uuid4().hex)
        try:
            return cls(past["episode"], tuple(past["actions"]), tuple(past["answers"]))
        except (KeyError, TypeError, IndexError) as error:
            raise UsageError(
                f"extra_env_info of a row has {past!r:.100} as {KEY!r}, which is where the "
                "episode is kept: give it another name"
            ) from error

    def after(self, action: str, seen: Observation) -> dict[str, Any]:
        """Returns the metadata for NeMo: the past actions and one more action, each with the digest
        of its answer."""
        return {
            "episode": self.episode,
            "actions": [*self.actions, action],
            "answers": [*self.answers, _digest(seen)],
        }


class _Episode:
    """One environment, with the number of actions that it has taken."""

    def __init__(self, environment: Environment):
        check_usable(environment)
        self._recovery = recovery_of(environment)
        self._name = environment.name
        self._guarded = GuardedEnvironment(AttemptState(asyncio.Event()), environment)
        self.done = 0

    async def begin(self, seed: int) -> Observation:
        await self._guarded.prepare()
        return await self._guarded.reset(seed)

    async def come_back(self, seed: int, past: _Past) -> None:
        if past.actions and self._recovery is Recovery.RESTART:
            raise EnvironmentBroken(
                f"{self._name} cannot come back after {len(past.actions)} actions (recovery is "
                "'restart'), and NeMo-RL has no way to begin the episode anew"
            )
        await self.begin(seed)
        if self._recovery is Recovery.STATELESS:
            self.done = len(past.actions)
            return
        for action, answer in zip(past.actions, past.answers, strict=True):
            if _digest(await self.step(action)) != answer:
                raise EnvironmentBroken(
                    f"{self._name} answers {action!r:.100} otherwise than before: it is not the "
                    "same after a restart; make it depend on its seed alone"
                )

    async def step(self, action: str) -> Observation:
        seen = await self._guarded.step(action)
        self.done += 1
        return seen

    async def close(self) -> None:
        try:
            if self._guarded.opened:
                await self._guarded.close()
        finally:
            self._guarded.thread.stop()


def _digest(seen: Observation) -> str:
    body = f"{seen.text}\0{seen.reward!r}\0{seen.done}\0{seen.truncated}\0{seen.error}"
    return hashlib.sha256(body.encode(errors="surrogatepass")).hexdigest()[:16]


def _seed(metadata: Metadata) -> int:
    return int(metadata.get("seed") or 0)


def _action(log: Sequence[Mapping[str, Any]]) -> str:
    """Returns the text of the policy's last message."""
    if not log or log[-1]["role"] != "assistant":
        raise UsageError(
            "a message log that is given to an environment ends with what the model said"
        )
    return str(log[-1]["content"])
