"""Between an environment's answers and the records of them."""

import msgspec

from holdfast.records.step import EnvironmentStepped, ToolResult
from holdfast.rollout.episodes.environment import Observation


def step_of(
    seen: Observation, *, path: str, fingerprint: bytes, action: str, episode: str, seconds: float
) -> EnvironmentStepped:
    return EnvironmentStepped(
        path=path,
        fingerprint=fingerprint,
        action=action,
        observation=seen.text,
        reward=seen.reward,
        done=seen.done,
        environment=episode,
        truncated=seen.truncated,
        error=seen.error,
        info=msgspec.msgpack.encode(seen.info) if seen.info else b"",
        seconds=seconds,
    )


def observation_of(step: EnvironmentStepped) -> Observation:
    info = msgspec.msgpack.decode(step.info) if step.info else {}
    return Observation(
        step.observation, step.reward, step.done, step.truncated, info, step.error, step.path
    )


def answer_of(result: ToolResult) -> Observation:
    """What an environment's tool answered."""
    reward = result.reward or 0.0
    return Observation(
        result.content, reward, result.done, result.truncated, error=result.error, path=result.path
    )
