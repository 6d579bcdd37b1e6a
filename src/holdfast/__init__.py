"""Durable rollouts of LLM agents: kill it at any moment, run it again, lose nothing.

The names below are the whole public API. They are imported when first used, so that `import
holdfast` costs milliseconds.

- `records`: The nouns that everything else is made of.
- `journal`: The data plane: durable, fenced, append-only.
- `policy`: Token-in token-out clients for inference engines.
- `embedded`: The embedded engine: any Hugging Face causal LM folder, served on this machine.
- `engine_api`: The server side of vLLM's HTTP API, shared by the embedded engine and the fake one.
- `rollout`: How one trajectory is made: the durable context, tools, and processors.
- `environments`: Environments: adapters from environments that exist to `holdfast.Environment`.
- `engine`: Running many trajectories: isolation, retry, refill, concurrency, deadlines, scoring,
  progress.
- `gateway`: The gateway: black-box agents over HTTP, recorded token by token, resumed by replay.
- `training`: Training on one machine: recorded trajectories become gradients, each exactly once.
- `evaluation`: Evaluations as pytest tests: run anywhere, killed at any moment, resumed by the same
  command.
- `cli`: The command line.
- `testing`: Tools for testing what is built on Holdfast, and Holdfast itself.
- `prometheus`: Metrics in Prometheus' text format.
- `clock`: Time as something that can be replaced.
- `crashpoint`: Places where a test may end the process.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.engine.export.read import samples as samples
    from holdfast.engine.export.read import trajectories as trajectories
    from holdfast.engine.run import run as run
    from holdfast.engine.scoring.scorer import Score as Score
    from holdfast.engine.scoring.scorer import group_scorer as group_scorer
    from holdfast.engine.settings import ScoringPolicy as ScoringPolicy
    from holdfast.engine.settings import Settings as Settings
    from holdfast.gateway.agents.external import (
        ExternalRolloutProcessor as ExternalRolloutProcessor,
    )
    from holdfast.gateway.agents.remote import RemoteRolloutProcessor as RemoteRolloutProcessor
    from holdfast.gateway.agents.subprocess import (
        BlackBoxRolloutProcessor as BlackBoxRolloutProcessor,
    )
    from holdfast.gateway.agents.workspace_policy import FreshWorld as FreshWorld
    from holdfast.gateway.agents.workspace_policy import WorkspaceWorld as WorkspaceWorld
    from holdfast.journal import open_journal as open_journal
    from holdfast.policy.client.replicas import EnginePolicy as EnginePolicy
    from holdfast.policy.rendering.select import renderer_for as renderer_for
    from holdfast.records.errors import EnvironmentBroken as EnvironmentBroken
    from holdfast.records.errors import HoldfastError as HoldfastError
    from holdfast.records.errors import ToolSaysNo as ToolSaysNo
    from holdfast.records.errors import UsageError as UsageError
    from holdfast.records.group import GroupPolicy as GroupPolicy
    from holdfast.records.group import Shortfall as Shortfall
    from holdfast.records.message import Message as Message
    from holdfast.records.message import Role as Role
    from holdfast.records.message import ToolCall as ToolCall
    from holdfast.records.message import assistant as assistant
    from holdfast.records.message import system as system
    from holdfast.records.message import user as user
    from holdfast.records.samples.sample import Sample as Sample
    from holdfast.records.sampling import Sampling as Sampling
    from holdfast.records.step import Contract as Contract
    from holdfast.records.task import Task as Task
    from holdfast.records.trajectory import Status as Status
    from holdfast.records.view import TrajectoryView as TrajectoryView
    from holdfast.rollout.context import Reply as Reply
    from holdfast.rollout.context import Rollout as Rollout
    from holdfast.rollout.episodes.environment import Environment as Environment
    from holdfast.rollout.episodes.environment import Observation as Observation
    from holdfast.rollout.episodes.environment import Recovery as Recovery
    from holdfast.rollout.episodes.episode import Episode as Episode
    from holdfast.rollout.processors.agent import AgentRolloutProcessor as AgentRolloutProcessor
    from holdfast.rollout.processors.agent import (
        EnvironmentRolloutProcessor as EnvironmentRolloutProcessor,
    )
    from holdfast.rollout.processors.dialogue import (
        DialogueRolloutProcessor as DialogueRolloutProcessor,
    )
    from holdfast.rollout.processors.processor import RolloutConfig as RolloutConfig
    from holdfast.rollout.processors.processor import RolloutProcessor as RolloutProcessor
    from holdfast.rollout.processors.processor import (
        SingleTurnRolloutProcessor as SingleTurnRolloutProcessor,
    )
    from holdfast.rollout.processors.training import (
        TrainingRolloutProcessor as TrainingRolloutProcessor,
    )
    from holdfast.rollout.replay.budget import Limits as Limits
    from holdfast.rollout.replay.run_context import OnDivergence as OnDivergence
    from holdfast.rollout.replay.speaker import Speaker as Speaker
    from holdfast.rollout.replay.speaker import Voice as Voice
    from holdfast.rollout.tools.tool import Tool as Tool
    from holdfast.rollout.tools.tool import tool as tool
    from holdfast.training.objective.objective import Objective as Objective
    from holdfast.training.run.train import train as train
    from holdfast.training.settings import TrainingSettings as TrainingSettings

__version__ = "0.1.0"

_WHERE = {
    "AgentRolloutProcessor": "holdfast.rollout.processors.agent",
    "BlackBoxRolloutProcessor": "holdfast.gateway.agents.subprocess",
    "Contract": "holdfast.records.step",
    "DialogueRolloutProcessor": "holdfast.rollout.processors.dialogue",
    "EnginePolicy": "holdfast.policy.client.replicas",
    "Environment": "holdfast.rollout.episodes.environment",
    "EnvironmentBroken": "holdfast.records.errors",
    "EnvironmentRolloutProcessor": "holdfast.rollout.processors.agent",
    "Episode": "holdfast.rollout.episodes.episode",
    "ExternalRolloutProcessor": "holdfast.gateway.agents.external",
    "FreshWorld": "holdfast.gateway.agents.workspace_policy",
    "GroupPolicy": "holdfast.records.group",
    "HoldfastError": "holdfast.records.errors",
    "Limits": "holdfast.rollout.replay.budget",
    "Message": "holdfast.records.message",
    "Objective": "holdfast.training.objective.objective",
    "Observation": "holdfast.rollout.episodes.environment",
    "OnDivergence": "holdfast.rollout.replay.run_context",
    "Recovery": "holdfast.rollout.episodes.environment",
    "RemoteRolloutProcessor": "holdfast.gateway.agents.remote",
    "Reply": "holdfast.rollout.context",
    "Role": "holdfast.records.message",
    "Rollout": "holdfast.rollout.context",
    "RolloutConfig": "holdfast.rollout.processors.processor",
    "RolloutProcessor": "holdfast.rollout.processors.processor",
    "Sample": "holdfast.records.samples.sample",
    "Sampling": "holdfast.records.sampling",
    "Score": "holdfast.engine.scoring.scorer",
    "ScoringPolicy": "holdfast.engine.settings",
    "Settings": "holdfast.engine.settings",
    "Shortfall": "holdfast.records.group",
    "SingleTurnRolloutProcessor": "holdfast.rollout.processors.processor",
    "Status": "holdfast.records.trajectory",
    "Task": "holdfast.records.task",
    "Tool": "holdfast.rollout.tools.tool",
    "ToolCall": "holdfast.records.message",
    "ToolSaysNo": "holdfast.records.errors",
    "TrainingRolloutProcessor": "holdfast.rollout.processors.training",
    "TrainingSettings": "holdfast.training.settings",
    "TrajectoryView": "holdfast.records.view",
    "UsageError": "holdfast.records.errors",
    "Speaker": "holdfast.rollout.replay.speaker",
    "Voice": "holdfast.rollout.replay.speaker",
    "WorkspaceWorld": "holdfast.gateway.agents.workspace_policy",
    "assistant": "holdfast.records.message",
    "group_scorer": "holdfast.engine.scoring.scorer",
    "open_journal": "holdfast.journal",
    "renderer_for": "holdfast.policy.rendering.select",
    "run": "holdfast.engine.run",
    "samples": "holdfast.engine.export.read",
    "system": "holdfast.records.message",
    "tool": "holdfast.rollout.tools.tool",
    "train": "holdfast.training.run.train",
    "trajectories": "holdfast.engine.export.read",
    "user": "holdfast.records.message",
}
__all__ = [
    "AgentRolloutProcessor",
    "BlackBoxRolloutProcessor",
    "Contract",
    "DialogueRolloutProcessor",
    "EnginePolicy",
    "Environment",
    "EnvironmentBroken",
    "EnvironmentRolloutProcessor",
    "Episode",
    "ExternalRolloutProcessor",
    "FreshWorld",
    "GroupPolicy",
    "HoldfastError",
    "Limits",
    "Message",
    "Objective",
    "Observation",
    "OnDivergence",
    "Recovery",
    "RemoteRolloutProcessor",
    "Reply",
    "Role",
    "Rollout",
    "RolloutConfig",
    "RolloutProcessor",
    "Sample",
    "Sampling",
    "Score",
    "ScoringPolicy",
    "Settings",
    "Shortfall",
    "SingleTurnRolloutProcessor",
    "Speaker",
    "Status",
    "Task",
    "Tool",
    "ToolCall",
    "ToolSaysNo",
    "TrainingRolloutProcessor",
    "TrainingSettings",
    "TrajectoryView",
    "UsageError",
    "Voice",
    "WorkspaceWorld",
    "assistant",
    "group_scorer",
    "open_journal",
    "renderer_for",
    "run",
    "samples",
    "system",
    "tool",
    "train",
    "trajectories",
    "user",
]


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    from importlib import import_module

    found: object = getattr(import_module(_WHERE[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
