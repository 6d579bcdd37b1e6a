"""Durable rollouts of LLM agents: kill it at any moment, run it again, lose nothing.

The names below are the whole public API. They are imported when first used, so that `import
holdfast` costs milliseconds.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.engine.reading import samples as samples
    from holdfast.engine.reading import trajectories as trajectories
    from holdfast.engine.run import run as run
    from holdfast.engine.scorer import Score as Score
    from holdfast.engine.scorer import group_scorer as group_scorer
    from holdfast.engine.settings import ScoringPolicy as ScoringPolicy
    from holdfast.engine.settings import Settings as Settings
    from holdfast.gateway.black_box import BlackBoxRolloutProcessor as BlackBoxRolloutProcessor
    from holdfast.gateway.external import ExternalRolloutProcessor as ExternalRolloutProcessor
    from holdfast.gateway.remote import RemoteRolloutProcessor as RemoteRolloutProcessor
    from holdfast.gateway.worlds import FreshWorld as FreshWorld
    from holdfast.gateway.worlds import WorkspaceWorld as WorkspaceWorld
    from holdfast.journal import open_journal as open_journal
    from holdfast.policy.choice import renderer_for as renderer_for
    from holdfast.policy.pool import EnginePolicy as EnginePolicy
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
    from holdfast.records.sample import Sample as Sample
    from holdfast.records.sampling import Sampling as Sampling
    from holdfast.records.step import Contract as Contract
    from holdfast.records.task import Task as Task
    from holdfast.records.trajectory import Status as Status
    from holdfast.records.view import TrajectoryView as TrajectoryView
    from holdfast.rollout.agent import AgentRolloutProcessor as AgentRolloutProcessor
    from holdfast.rollout.agent import EnvironmentRolloutProcessor as EnvironmentRolloutProcessor
    from holdfast.rollout.budget import Limits as Limits
    from holdfast.rollout.context import Reply as Reply
    from holdfast.rollout.context import Rollout as Rollout
    from holdfast.rollout.dialogue import DialogueRolloutProcessor as DialogueRolloutProcessor
    from holdfast.rollout.environment import Environment as Environment
    from holdfast.rollout.environment import Observation as Observation
    from holdfast.rollout.environment import Recovery as Recovery
    from holdfast.rollout.episode import Episode as Episode
    from holdfast.rollout.processor import RolloutConfig as RolloutConfig
    from holdfast.rollout.processor import RolloutProcessor as RolloutProcessor
    from holdfast.rollout.processor import SingleTurnRolloutProcessor as SingleTurnRolloutProcessor
    from holdfast.rollout.session import OnDivergence as OnDivergence
    from holdfast.rollout.tool import Tool as Tool
    from holdfast.rollout.tool import tool as tool
    from holdfast.rollout.training import TrainingRolloutProcessor as TrainingRolloutProcessor
    from holdfast.rollout.voice import Voice as Voice

__version__ = "0.1.0"

_WHERE = {
    "AgentRolloutProcessor": "holdfast.rollout.agent",
    "BlackBoxRolloutProcessor": "holdfast.gateway.black_box",
    "Contract": "holdfast.records.step",
    "DialogueRolloutProcessor": "holdfast.rollout.dialogue",
    "EnginePolicy": "holdfast.policy.pool",
    "Environment": "holdfast.rollout.environment",
    "EnvironmentBroken": "holdfast.records.errors",
    "EnvironmentRolloutProcessor": "holdfast.rollout.agent",
    "Episode": "holdfast.rollout.episode",
    "ExternalRolloutProcessor": "holdfast.gateway.external",
    "FreshWorld": "holdfast.gateway.worlds",
    "GroupPolicy": "holdfast.records.group",
    "HoldfastError": "holdfast.records.errors",
    "Limits": "holdfast.rollout.budget",
    "Message": "holdfast.records.message",
    "Observation": "holdfast.rollout.environment",
    "OnDivergence": "holdfast.rollout.session",
    "Recovery": "holdfast.rollout.environment",
    "RemoteRolloutProcessor": "holdfast.gateway.remote",
    "Reply": "holdfast.rollout.context",
    "Role": "holdfast.records.message",
    "Rollout": "holdfast.rollout.context",
    "RolloutConfig": "holdfast.rollout.processor",
    "RolloutProcessor": "holdfast.rollout.processor",
    "Sample": "holdfast.records.sample",
    "Sampling": "holdfast.records.sampling",
    "Score": "holdfast.engine.scorer",
    "ScoringPolicy": "holdfast.engine.settings",
    "Settings": "holdfast.engine.settings",
    "Shortfall": "holdfast.records.group",
    "SingleTurnRolloutProcessor": "holdfast.rollout.processor",
    "Status": "holdfast.records.trajectory",
    "Task": "holdfast.records.task",
    "Tool": "holdfast.rollout.tool",
    "ToolCall": "holdfast.records.message",
    "ToolSaysNo": "holdfast.records.errors",
    "TrainingRolloutProcessor": "holdfast.rollout.training",
    "TrajectoryView": "holdfast.records.view",
    "UsageError": "holdfast.records.errors",
    "Voice": "holdfast.rollout.voice",
    "WorkspaceWorld": "holdfast.gateway.worlds",
    "assistant": "holdfast.records.message",
    "group_scorer": "holdfast.engine.scorer",
    "open_journal": "holdfast.journal",
    "renderer_for": "holdfast.policy.choice",
    "run": "holdfast.engine.run",
    "samples": "holdfast.engine.reading",
    "system": "holdfast.records.message",
    "tool": "holdfast.rollout.tool",
    "trajectories": "holdfast.engine.reading",
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
    "Status",
    "Task",
    "Tool",
    "ToolCall",
    "ToolSaysNo",
    "TrainingRolloutProcessor",
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
