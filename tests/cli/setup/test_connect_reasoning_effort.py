"""`--reasoning-effort`: told to an engine that takes it, refused at once where nothing can."""

from holdfast.records.exit_codes import Exit
from holdfast.testing import FakeEngine
from support.cli.shell import CommandLine

ASKING = """
async def solve(t):
    t.add(*t.task.messages)
    await t.generate(max_tokens=12)
"""


def test_an_engine_that_takes_messages_is_told_the_effort(tmp_path) -> None:
    with FakeEngine(dialect="chat") as engine:
        shell = CommandLine(tmp_path, engine)
        shell.write("agent.py", ASKING)
        done = shell.run("--reasoning-effort", "low")
        assert done.code == Exit.OK, done.err
        assert {call.effort for call in engine.calls()} == {"low"}
        done = shell.run("--reasoning-effort", "high")
        assert done.code == Exit.CHANGED
        assert "sampling.reasoning_effort: recorded 'low', now 'high'" in done.err


def test_a_renderer_without_words_for_it_is_refused_before_anything_is_recorded(shell) -> None:
    done = shell.run("--reasoning-effort", "low")
    assert done.code == Exit.USAGE
    assert "reasoning_effort cannot be followed: the renderer 'bytes'" in done.line
    assert shell.engine.stats().requests == 0
    assert not shell.journal.exists()


def test_what_is_no_effort_is_refused_by_its_name(shell) -> None:
    done = shell.run("--reasoning-effort", "very much")
    assert done.code == Exit.USAGE
    assert "reasoning_effort is a word like low" in done.line
