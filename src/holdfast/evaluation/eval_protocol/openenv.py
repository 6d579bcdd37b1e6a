"""OpenEnvRolloutProcessor runs episodes of an OpenEnv server, under eval-protocol's names."""

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.evaluation.eval_protocol.row_processor import TakesRows
from holdfast.records.errors import UsageError
from holdfast.records.task import Task
from holdfast.rollout.episodes.environment import DEFAULT_TIMEOUT
from holdfast.rollout.processors.agent import EnvironmentRolloutProcessor
from holdfast.rollout.processors.processor import code_of

if TYPE_CHECKING:
    from holdfast.environments.openenv import OpenEnvEnvironment

DEFAULT_STEPS = 30
DEFAULT_PATIENCE = 60.0


class OpenEnvRolloutProcessor(TakesRows, EnvironmentRolloutProcessor):
    """Repeats three steps until the episode is over: observation, reply, action. The reward is the
    sum of the steps' rewards.

    - `env_factory` makes a client, or `env_client_cls` makes it from `env_base_url`.
    - `prompt_builder(observation, step, history)` returns the prompt's text; `history` has a line
      per reply. The text must depend only on these arguments, because a restored episode is
      compared with its recorded text.
    - `action_parser` makes the client's action from a reply.

    The processor itself starts no servers. `env_factory` can start containers and hubs.
    """

    def __init__(
        self,
        env_factory: Callable[[], object] | None = None,
        prompt_builder: Callable[[Any, int, list[str]], object] | None = None,
        action_parser: Callable[[str], object] | None = None,
        *,
        env_client_cls: Callable[..., object] | None = None,
        env_base_url: str | None = None,
        request_timeout_s: float = DEFAULT_TIMEOUT,
        steps: int = DEFAULT_STEPS,
        patience: float = DEFAULT_PATIENCE,
    ):
        if action_parser is None:
            raise UsageError("OpenEnvRolloutProcessor wants action_parser=…: reply to action")
        if (env_factory is None) == (env_base_url is None):
            raise UsageError("OpenEnvRolloutProcessor wants env_factory=… or env_base_url=…")
        self._arguments: dict[str, Any] = {
            "env_factory": env_factory,
            "prompt_builder": prompt_builder,
            "action_parser": action_parser,
            "env_client_cls": env_client_cls,
            "env_base_url": env_base_url,
            "request_timeout_s": request_timeout_s,
            "steps": steps,
            "patience": patience,
        }
        # Imported only on use, because it takes seconds and needs an extra.
        importlib.import_module("holdfast.environments.openenv")
        super().__init__(self._make_environment, max_turns=steps)

    @property
    def identity(self) -> str:
        named = ("env_factory", "prompt_builder", "action_parser", "env_client_cls")
        return f"{super().identity} {code_of(*(self._arguments[name] for name in named))}"

    def configured(
        self,
        *,
        steps: int | None = None,
        rollout_processor_kwargs: Mapping[str, Any] | None = None,
        mcp_config_path: str | Path | None = None,
        server_script_path: str | Path | None = None,
    ) -> "OpenEnvRolloutProcessor":
        """Returns a copy with the decorator's arguments."""
        if mcp_config_path or server_script_path:
            raise UsageError("OpenEnvRolloutProcessor takes neither MCP config nor server script")
        more = {} if steps is None else {"steps": steps}
        unknown = (rollout_processor_kwargs or {}).keys() - self._arguments.keys()
        if unknown:
            raise UsageError(f"rollout_processor_kwargs: unknown to OpenEnv: {min(unknown)!r}")
        return type(self)(**{**self._arguments, **(rollout_processor_kwargs or {}), **more})

    def _make_environment(self, task: Task) -> "OpenEnvEnvironment":
        arguments = self._arguments
        history: list[str] = []
        build = arguments["prompt_builder"] or (lambda observation, step, lines: str(observation))

        def observe(observation: Any) -> str:
            return str(build(observation, len(history) + 1, list(history)))

        def parse(reply: str) -> object:
            history.append(f"step {len(history) + 1}: {reply}")
            return arguments["action_parser"](reply)

        factory, client = arguments["env_factory"], arguments["env_client_cls"]
        if factory is not None:
            client = lambda **_: factory()  # noqa: E731
        from holdfast.environments.openenv import OpenEnvEnvironment

        return OpenEnvEnvironment(
            arguments["env_base_url"] or "",
            **({} if client is None else {"client": client}),
            action=parse,
            observe=observe,
            timeout=arguments["request_timeout_s"],
            patience=arguments["patience"],
        )
