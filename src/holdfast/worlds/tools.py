"""The tools with which a model acts in its world: bash, read_file, write_file and edit.

Their effects are files and processes of the world. So after a snapshot was restored, the later
calls run again.
"""

from collections.abc import Callable, Sequence

from holdfast.records.errors import ToolSaysNo
from holdfast.records.step import Contract
from holdfast.rollout.tools.tool import Function, Tool
from holdfast.worlds.contract.output import Output
from holdfast.worlds.contract.world import COMMAND_SECONDS, ExecResult, World

TOOLS = ("bash", "read_file", "write_file", "edit")
OUTPUT = 16 * 1024
SHELL_STATE = "/tmp/.holdfast-shell"  # noqa: S108 - the world's
LEEWAY_SECONDS = 300.0
"""The most seconds that a call may take in addition to its command."""


def world_tools(
    world: Callable[[], World],
    *,
    names: Sequence[str] = TOOLS,
    seconds: float = COMMAND_SECONDS,
    output: int = OUTPUT,
    persistent_shell: bool = False,
) -> list[Tool]:
    """Returns the tools that act in the world that `world` returns at the time of a call."""

    async def bash(command: str) -> str:
        """Runs a shell command, and returns its output and exit code."""
        text = in_persistent_shell(command) if persistent_shell else command
        return result_text(await world().exec(text, timeout=seconds, output=output), seconds)

    async def read_file(path: str) -> str:
        """Returns the text of a file. The middle of a long file is left out."""
        kept = Output(output)
        kept.add(await _read(world(), path))
        return kept.text()

    async def write_file(path: str, content: str) -> str:
        """Writes a file, with the folders that it needs."""
        await _write(world(), path, content)
        return f"wrote {path}"

    async def edit(path: str, old: str, new: str) -> str:
        """Replaces the only occurrence of a text in a file."""
        text = (await _read(world(), path)).decode("utf-8", "surrogateescape")
        count = text.count(old) if old else 0
        if count != 1:
            raise ToolSaysNo(f"{path} has the text {count} times, not once; nothing was changed")
        await _write(world(), path, text.replace(old, new))
        return f"edited {path}"

    tools: dict[str, Function] = {
        "bash": bash,
        "read_file": read_file,
        "write_file": write_file,
        "edit": edit,
    }
    limit = seconds + LEEWAY_SECONDS
    return [Tool(tools[name], contract=Contract.IDEMPOTENT, timeout=limit) for name in names]


def in_persistent_shell(command: str) -> str:
    """Returns the command with code before and after it. This code keeps the working folder and the
    exported variables of one command for the next, in a file of the world."""
    return (
        f'[ -f {SHELL_STATE} ] && . {SHELL_STATE} && cd "$PWD"\n'
        f"trap 'export -p >{SHELL_STATE}' EXIT\n{command}"
    )


async def _read(world: World, path: str) -> bytes:
    try:
        return await world.read(path)
    except OSError as error:
        raise ToolSaysNo(f"cannot read {path}: {error.strerror}") from error


async def _write(world: World, path: str, text: str) -> None:
    try:
        await world.write(path, text.encode("utf-8", "surrogateescape"))
    except OSError as error:
        raise ToolSaysNo(f"cannot write {path}: {error.strerror}") from error


def result_text(result: ExecResult, seconds: float) -> str:
    """Returns the text that a model sees as the result of a command."""
    end = f"[killed after {seconds:g} s]" if result.timed_out else ""
    end = end or (f"[exit code {result.exit_code}]" if result.exit_code else "")
    return "\n".join(part for part in (result.output.rstrip("\n"), end) if part)
