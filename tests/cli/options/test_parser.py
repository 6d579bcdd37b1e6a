"""A word that is wrong or missing is answered with those that are right."""

import shutil

import pytest

from holdfast.records.exit_codes import Exit


def refused(shell, *arguments) -> str:
    done = shell.holdfast(*arguments)
    assert (done.code, done.out) == (Exit.USAGE, ""), done.err
    return done.line


@pytest.mark.parametrize(
    ("arguments", "meant", "command"),
    [
        (("run", "agent.py", "--tasks", "t", "--run", "r", "--polcy", "u"), "--policy", "run"),
        (("run", "agent.py", "--taks", "t", "--run", "r"), "--tasks", "run"),
        (("runs", "--jurnal=x"), "--journal", "runs"),
        (("policy", "check", "http://u", "--dialekt", "vllm"), "--dialect", "policy check"),
    ],
)
def test_an_option_that_is_mistyped_is_told_the_one_that_is_near(shell, arguments, meant, command):
    typed = next(word for word in arguments if word[:5] in ("--pol", "--tak", "--jur", "--dia"))
    line = refused(shell, *arguments)
    assert f"did you mean {meant} instead of {typed.partition('=')[0]}? see" in line
    assert line.endswith(f"see `holdfast {command} --help`")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "--lr", "3"), "did you mean --learning-rate instead of --lr?"),
        (("train", "--batch-size", "3"), "did you mean --groups instead of --batch-size?"),
        (("run", "--batch_size", "3"), "did you mean --concurrency instead of --batch_size?"),
        (("run", "--num-samples=3"), "did you mean --samples instead of --num-samples?"),
        (("run", "--max_tokens", "3"), "did you mean --max-tokens instead of --max_tokens?"),
        (("export", "r", "--output", "x"), "did you mean --out instead of --output?"),
        (("export", "r", "--what", "sample"), "--what sample is unknown; did you mean samples?"),
        (("export", "r", "--what", "csv"), "choose from 'samples', 'rows'"),
        (("rnu", "agent.py"), "there is no command 'rnu'; did you mean run?"),
        (("list",), "there is no command 'list'; did you mean runs?"),
        (("version",), "did you mean --version?"),
        (("journal", "chek"), "ACTION chek is unknown; did you mean check?"),
        (("completion", "bsh"), "shell bsh is unknown; did you mean bash?"),
        (("xyzzy",), "there is no command 'xyzzy'; there are init, run, train"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_words_of_other_tools_and_near_misses_are_answered_with_ours(shell, arguments, message):
    assert message in refused(shell, *arguments)


def test_a_run_whose_name_is_mistyped_is_told_the_one_that_is_near(shell):
    shell.finished_run(run="first")
    assert "did you mean first? (`holdfast runs` lists all 1)" in refused(shell, "show", "fisrt")
    assert "it has: first" in refused(shell, "show", "other")


def test_an_option_that_is_like_no_other_is_told_where_all_are(shell):
    line = refused(shell, "runs", "--colour", "red")
    assert line == "holdfast: unrecognized arguments: --colour red; see `holdfast runs --help`"


def test_a_key_in_the_value_of_a_mistyped_option_is_not_shown(shell):
    line = refused(shell, "runs", "--polcy", "http://s3cret@host:1")
    assert "s3cret" not in line


def test_what_is_required_is_told_with_its_values(shell):
    line = refused(shell, "export", "r", "--out", "o")
    assert "required: --what; --what is one of samples, rows, trajectories, failures" in line
    assert "ACTION is one of check" in refused(shell, "journal")


def test_a_rollout_that_is_not_async_is_named(shell):
    shell.write("agent.py", "def solve(t):\n    pass\n\n\ndef score(t):\n    return 1\n")
    line = refused(shell, *shell.arguments())
    assert "agent.py has no rollout: it wants an async function" in line
    assert "solve is not an async function (`async def`)" in line


def test_a_file_with_nothing_like_a_rollout_is_told_what_one_is(shell):
    shell.write("agent.py", "def solve(a, b):\n    pass\n\n\ndef score(t):\n    return 1\n")
    assert "has no rollout: it wants an async function of one argument" in refused(
        shell, *shell.arguments()
    )


def test_a_scorer_that_is_not_there_is_told_those_that_are(shell):
    source = (shell.place / "agent.py").read_text()
    shell.write("agent.py", source + "\n\ndef strict(trajectory):\n    return 0\n")
    line = refused(shell, *shell.arguments("--scorer", "nosuch"))
    assert (
        "agent.py has no scorer 'nosuch'; its functions of one argument, judges and ready scorers"
        in line
    )
    assert line.rstrip().endswith(": score, strict")
    judge = 'import holdfast\njudge = holdfast.Judge("Right?", policy="http://127.0.0.1:9")\n'
    shell.write("agent.py", judge + source)
    line = refused(shell, *shell.arguments("--scorer", "jugde"))
    assert "has no scorer 'jugde'; is 'judge' meant?" in line
    shell.write("points.py", "POINTS = 1\n")
    line = refused(shell, *shell.arguments("--scorer", "points.py:nosuch"))
    assert "its functions of one argument, judges and ready scorers: none" in line


def test_what_a_command_of_the_journal_wants_is_said_as_it_is_given(shell):
    line = refused(shell, "journal", "compact", "none.db")
    assert line.endswith("name one as FILE: holdfast journal compact FILE")
    line = refused(shell, "journal", "copy", "none.db", "to.db")
    assert line.endswith("name one: holdfast journal copy FROM TO [RUN …]")
    line = refused(shell, "journal", "copy")
    assert "required: FROM, TO; see" in line
    assert "required: RUN; see" in refused(shell, "tag")


def test_the_journal_that_is_checked_is_the_one_that_the_other_commands_take(shell):
    line = refused(shell, "journal", "check")
    assert line == (
        "holdfast: there is no journal at holdfast.db; name one: holdfast journal check FILE"
    )
    shell.finished_run()
    unnamed = shell.holdfast("journal", "check")
    assert unnamed.code == Exit.OK
    assert unnamed.out == shell.holdfast("journal", "check", "holdfast.db").out
    shutil.move(shell.journal, shell.place / "other.db")
    assert shell.holdfast("journal", "check", "other.db").code == Exit.OK


def test_exit_codes_are_listed_once_by_the_program(shell):
    assert "  130  " in shell.holdfast("--help").out
    out = shell.holdfast("runs", "--help").out
    assert (out.splitlines()[-1], "130" in out) == ("exit codes: holdfast --help", False)
