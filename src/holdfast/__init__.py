"""Durable rollouts of LLM agents: a run that is killed at any moment continues without loss.

The names below are the whole public API. They are imported when first used, so that `import
holdfast` costs milliseconds.

- `records`: The data types that all other packages use.
- `journal`: The durable, append-only store of runs, with fencing.
- `policy`: Token-in token-out clients for inference engines.
- `embedded`: The embedded engine: serves any Hugging Face causal LM folder on this machine.
- `engine_api`: The server side of vLLM's HTTP API, shared by the embedded engine and the fake one.
- `vllm_server`: Starts a vLLM server here: `holdfast serve --engine vllm`.
- `rollout`: Makes one trajectory, with the durable context, tools, and processors.
- `worlds`: A machine of its own for each trajectory: containers, snapshots, and tools in them.
- `environments`: Adapters from existing environments to `holdfast.Environment`.
- `tasks`: Tasks from files, tables, data sets by name, functions, and Python values.
- `engine`: Runs many trajectories: isolation, retry, refill, concurrency, deadlines, scoring,
  progress.
- `scorers`: Ready scorers, which compare a trajectory with its task's ground truth.
- `gateway`: The gateway: black-box agents over HTTP, recorded token by token, resumed by replay.
- `harbor`: The agents that a command names (`--agent`), which work in containers, and Harbor's
  verifier.
- `weights`: Sends weights from the trainer into engines: all or nothing, per replica.
- `training`: Training on one machine: recorded trajectories become gradients, each exactly once.
- `pipeline`: Rollouts and training at the same time, each at its own pace.
- `convert`: Converts samples to the formats of other trainers (verl, slime, TRL, NeMo-RL, Tinker),
  and back.
- `cluster`: Workers on many machines, placed by Ray.
- `delivery`: Delivers recorded groups to other training loops, each exactly once.
- `trl`: TRL's trainers on durable rollouts.
- `slime`: slime on durable rollouts.
- `verl`: verl's agent loop on durable rollouts.
- `nemo`: NeMo-RL: our environments in its rollouts, and recorded groups for its buffer.
- `evaluation`: Evaluations as pytest tests, which the same command resumes after a kill.
- `view`: The pages of a journal in a browser.
- `tracing`: Spans for an OpenTelemetry collector.
- `beside`: Runs `holdfast view` and `holdfast trace` beside a command.
- `cli`: The command line.
- `testing`: Tools for testing Holdfast and code that is built on it.
- `addresses`: Checks addresses and tokens of servers, for every server and client of ours.
- `private_files`: Folders and files that only this user can change, even in shared places.
- `server_tokens`: Tokens of servers that listen only on this machine.
- `request_guard`: Refuses requests that a web page may have sent, for every HTTP server of ours.
- `request_body`: Reads the bodies of requests, for every HTTP server of ours.
- `off_loop`: Runs work on large prompts in a thread instead of on the event loop.
- `log_files`: Log files of a run's processes, one file per process.
- `version`: The installed version.
- `extras`: Reports optional packages that are not installed, with a line that says what to install.
- `lazy_names`: Imports public names of a package at their first use.
- `prometheus`: Metrics in Prometheus' text format.
- `clock`: A clock that tests can replace.
- `crashpoint`: Points at which a test can end the process.
"""

from typing import TYPE_CHECKING

from holdfast.lazy_names import lazy_names

if TYPE_CHECKING:
    from holdfast import scorers as scorers
    from holdfast.delivery.delivery import DeliveredBatch as DeliveredBatch
    from holdfast.delivery.delivery import Delivery as Delivery
    from holdfast.engine.export.prices import Prices as Prices
    from holdfast.engine.export.read import samples as samples
    from holdfast.engine.export.read import trajectories as trajectories
    from holdfast.engine.judging.judge import Judge as Judge
    from holdfast.engine.open_policy import open_policy as open_policy
    from holdfast.engine.open_run import RunChanged as RunChanged
    from holdfast.engine.progress.counters import ProgressSnapshot as ProgressSnapshot
    from holdfast.engine.running.fork import fork as fork
    from holdfast.engine.running.result import RunResult as RunResult
    from holdfast.engine.running.run import run as run
    from holdfast.engine.running.run import run_sync as run_sync
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
    from holdfast.gateway.agents.workspace import FreshWorld as FreshWorld
    from holdfast.gateway.agents.workspace import WorkspaceWorld as WorkspaceWorld
    from holdfast.journal import open_journal as open_journal
    from holdfast.policy.client.replicas import EnginePolicy as EnginePolicy
    from holdfast.policy.rendering.select import renderer_for as renderer_for
    from holdfast.records.errors import DeliveryTimeout as DeliveryTimeout
    from holdfast.records.errors import EnvironmentBroken as EnvironmentBroken
    from holdfast.records.errors import HoldfastError as HoldfastError
    from holdfast.records.errors import JournalError as JournalError
    from holdfast.records.errors import PolicyError as PolicyError
    from holdfast.records.errors import RunHeld as RunHeld
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
    from holdfast.rollout.tools.tool import Tool as Tool
    from holdfast.rollout.tools.tool import tool as tool
    from holdfast.tasks.read import read_tasks as read_tasks
    from holdfast.training.objective.objective import Objective as Objective
    from holdfast.training.run.train import train as train
    from holdfast.training.settings import TrainingSettings as TrainingSettings
    from holdfast.worlds.contract.spec import WorldSpec as WorldSpec
    from holdfast.worlds.running.environment import WorldEnvironment as WorldEnvironment

    __version__: str

_MODULES = {
    "delivery.delivery": "DeliveredBatch Delivery",
    "engine.export.read": "samples trajectories",
    "engine.judging.judge": "Judge",
    "engine.open_policy": "open_policy",
    "engine.open_run": "RunChanged",
    "engine.export.prices": "Prices",
    "engine.progress.counters": "ProgressSnapshot",
    "engine.running.fork": "fork",
    "engine.running.result": "RunResult",
    "engine.running.run": "run run_sync",
    "engine.scoring.scorer": "Score group_scorer",
    "engine.settings": "ScoringPolicy Settings",
    "gateway.agents.external": "ExternalRolloutProcessor",
    "gateway.agents.remote": "RemoteRolloutProcessor",
    "gateway.agents.subprocess": "BlackBoxRolloutProcessor",
    "gateway.agents.workspace": "FreshWorld WorkspaceWorld",
    "journal": "open_journal",
    "policy.client.replicas": "EnginePolicy",
    "policy.rendering.select": "renderer_for",
    "records.errors": "DeliveryTimeout EnvironmentBroken HoldfastError JournalError PolicyError "
    "RunHeld ToolSaysNo UsageError",
    "records.group": "GroupPolicy Shortfall",
    "records.message": "Message Role ToolCall assistant system user",
    "records.samples.sample": "Sample",
    "records.sampling": "Sampling",
    "records.step": "Contract",
    "records.task": "Task",
    "records.trajectory": "Status",
    "records.view": "TrajectoryView",
    "rollout.context": "Reply Rollout",
    "rollout.episodes.environment": "Environment Observation Recovery",
    "rollout.episodes.episode": "Episode",
    "rollout.processors.agent": "AgentRolloutProcessor EnvironmentRolloutProcessor",
    "rollout.processors.dialogue": "DialogueRolloutProcessor",
    "rollout.processors.processor": "RolloutConfig RolloutProcessor SingleTurnRolloutProcessor",
    "rollout.processors.training": "TrainingRolloutProcessor",
    "rollout.replay.budget": "Limits",
    "rollout.replay.run_context": "OnDivergence",
    "worlds.contract.spec": "WorldSpec",
    "worlds.running.environment": "WorldEnvironment",
    "rollout.replay.speaker": "Speaker",
    "rollout.tools.tool": "Tool tool",
    "tasks.read": "read_tasks",
    "training.objective.objective": "Objective",
    "training.run.train": "train",
    "training.settings": "TrainingSettings",
}
_ROOMS = ("convert", "scorers", "slime", "trl", "verl")
"""Submodules that users reach as `holdfast.NAME`, besides the public names."""
_load, __all__ = lazy_names(__name__, _MODULES, rooms=_ROOMS)


def __getattr__(name: str) -> object:
    if name == "__version__":
        from holdfast.version import installed_version

        return installed_version()
    if name == "train":  # The module imports torch.
        from holdfast.extras import require

        require("training", extra="train")
    return _load(name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
