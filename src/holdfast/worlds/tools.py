"""The tools with which a model acts in its world."""

from collections.abc import Callable, Sequence

from holdfast.records.step import Contract
from holdfast.rollout.tools.tool import Tool
from holdfast.worlds.contract.world import COMMAND_SECONDS, ExecResult, World

TOOLS = ("bash",)
OUTPUT = 16 * 1024
LEEWAY_SECONDS = 300.0
"""How long a call may take in addition to its command."""


def world_tools(
    world: Callable[[], World],
    *,
    names: Sequence[str] = TOOLS,
    seconds: float = COMMAND_SECONDS,
    output: int = OUTPUT,
) -> list[Tool]:
    """Returns the tools that act in the world that `world` returns at the time of a call."""

    async def bash(command: str) -> str:
        """Runs a shell command, and returns its output and exit code."""
        return result_text(await world().exec(command, timeout=seconds, output=output), seconds)

    tools = {"bash": bash}
    limit = seconds + LEEWAY_SECONDS
    return [Tool(tools[name], contract=Contract.IDEMPOTENT, timeout=limit) for name in names]


def result_text(result: ExecResult, seconds: float) -> str:
    """Returns what a model sees of a command."""
    end = f"[killed after {seconds:g} s]" if result.timed_out else ""
    end = end or (f"[exit code {result.exit_code}]" if result.exit_code else "")
    return "\n".join(part for part in (result.output.rstrip("\n"), end) if part)
