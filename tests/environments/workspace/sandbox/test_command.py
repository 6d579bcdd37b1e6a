"""Commands in a workspace: whatever they do is an answer, and nothing of them stays."""

import asyncio
import os
import secrets
import time

import pytest

from holdfast.environments.workspace import ResourceLimits, Workspace, WorkspaceLimit
from holdfast.records.errors import EnvironmentBroken, ToolSaysNo, UsageError
from support.environments.workspaces import both, opened, running, shell

MIB = 1 << 20


@both
def test_a_command_says_what_it_printed_and_how_it_ended(sandbox):
    output = shell("echo out; echo err >&2; exit 3", sandbox=sandbox)
    assert output == "out\nerr\n[exit code 3]"


@both
def test_a_step_is_a_command_without_a_reward(sandbox):
    async def run():
        async with opened({"a": "b"}, sandbox=sandbox) as workspace:
            return await workspace.step("cat a; exit 1")

    seen = asyncio.run(run())
    assert (seen.text, seen.reward, seen.info["exit_code"]) == ("b\n[exit code 1]", 0.0, 1)
    assert not seen.over


@both
def test_files_stay_and_everything_else_ends_with_its_command(sandbox):
    mark = f"10{secrets.randbelow(10**9)}"
    output = shell(
        "echo kept > file; echo lost > $TMPDIR/x; export A=1; cd /; "
        f"sleep {mark} & (setsid sleep {mark} &); "
        f"python -c 'import os,time\nif os.fork() == 0:\n os.setsid()\n if os.fork() == 0:\n"
        f"  os.close(0); time.sleep({mark})'",
        "pwd; cat file; ls $TMPDIR/x; echo A=$A",
        sandbox=sandbox,
    )
    lost = "ls: cannot access '/tmp/x': No such file or directory"
    assert output == f"/workspace\nkept\n{lost}\nA=\n[exit code 0]"
    assert not running(mark)


@both
def test_a_process_in_the_background_that_holds_the_output_open_hangs_nothing(sandbox):
    started = time.monotonic()
    assert shell("(sleep 1000 &); echo done", sandbox=sandbox) == "done\n[exit code 0]"
    assert time.monotonic() - started < 200


@both
def test_a_command_that_hangs_is_killed_with_all_that_it_started(sandbox):
    mark = f"10{secrets.randbelow(10**9)}"
    output = shell(
        f"echo before; trap '' TERM INT HUP; setsid sleep {mark} & sleep {mark}",
        timeout=4,
        sandbox=sandbox,
    )
    assert output == "before\n[timed out after 4 s]"
    assert not running(mark)


@both
def test_a_command_that_closes_its_output_is_still_waited_for(sandbox):
    output = shell("exec >&- 2>&-; sleep 0.3; exit 7", sandbox=sandbox)
    assert output == "[exit code 7]"


@both
def test_a_command_that_is_killed_says_so_in_its_exit_code(sandbox):
    assert shell("kill -9 $$", sandbox=sandbox) == "[exit code 137]"


@both
def test_of_much_output_the_beginning_and_the_end_are_kept(sandbox):
    outputs = shell(
        "echo first; head -c 10485760 /dev/zero | tr '\\0' x; echo; echo last",
        sandbox=sandbox,
        output_limit=1000,
    )
    assert outputs.startswith("first\nxxx")
    assert outputs.endswith("xxx\nlast\n[exit code 0]")
    assert "[… 9.999 MiB left out …]" in outputs
    assert len(outputs) < 1100


@both
def test_a_flood_of_output_is_stopped(sandbox):
    outputs = shell("yes", sandbox=sandbox, output_limit=1000)
    assert outputs.endswith("[stopped after it had printed 64 MiB]")
    assert len(outputs) < 1100


@both
def test_what_is_not_text_is_replaced(sandbox):
    output = shell("printf 'a\\xff\\xfe\\x00b\\xe2\\x82'", sandbox=sandbox)
    assert output == "a\ufffd\ufffd\x00b\ufffd\n[exit code 0]"


def test_no_character_is_torn_where_output_is_cut():
    for limit in range(16, 24):
        output = shell("printf '€%.0s' $(seq 100)", sandbox="none", output_limit=limit)
        assert "\ufffd" not in output
        assert output.startswith("€")


@both
def test_secrets_of_the_driver_reach_no_command(sandbox, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    output = shell("env; cat /proc/self/environ", sandbox=sandbox, env={"MINE": "given"})
    assert "sk-very-secret" not in output
    assert "OPENAI" not in output
    assert "MINE=given" in output
    names = {line.split("=")[0] for line in output.split("\0")[0].splitlines() if "=" in line}
    assert names <= {
        *("PATH", "HOME", "LANG", "TERM", "TMPDIR", "PWD", "SHLVL", "_", "MINE"),
        *("PYTHONDONTWRITEBYTECODE", "PYTHONHASHSEED"),
    }


@both
def test_no_file_of_the_driver_is_open_in_a_command(sandbox, tmp_path):
    with open(tmp_path / "secret", "w") as file:
        os.set_inheritable(file.fileno(), True)
        output = shell("ls /proc/self/fd | tr '\\n' ' '", sandbox=sandbox)
    assert output == "0 1 2 3 \n[exit code 0]"


@both
def test_nothing_of_where_a_workspace_lies_is_in_its_outputs(sandbox):
    text = shell("pwd; echo $HOME $TMPDIR; readlink -f .; python -c 'raise SystemExit(__file__)' ||"
                 " mktemp -p $TMPDIR x.XXX | cut -d. -f1", sandbox=sandbox)  # fmt: skip
    assert text.splitlines()[:3] == ["/workspace", "/workspace /tmp", "/workspace"]
    assert "holdfast" not in text
    assert "/tmp/x" in text


@both
@pytest.mark.parametrize(
    ("command", "limits", "says"),
    [
        ("python -c 'x = bytearray(10**9)'", ResourceLimits(memory=300 * MIB), "MemoryError"),
        (
            "python -c 'import mmap; mmap.mmap(-1, 10**10)'",
            ResourceLimits(memory=300 * MIB),
            "Cannot allocate memory",
        ),
        ("head -c 10M /dev/zero > big; ls -s big", ResourceLimits(file_size=MIB), "1024 big"),
        ("ulimit -n; exec 30>&1", ResourceLimits(open_files=20), "Bad file descriptor"),
        ("while :; do :; done", ResourceLimits(cpu_seconds=1), "[exit code 137]"),
    ],
)
def test_resources_are_limited(sandbox, command, limits, says):
    assert says in shell(command, sandbox=sandbox, limits=limits)


@both
def test_commands_are_nice(sandbox):
    nicer = min(19, os.nice(0) + 5)  # Than the tests, which may be nice themselves.
    assert shell("nice", sandbox=sandbox) == f"{nicer}\n[exit code 0]"


@both
def test_a_command_that_fills_the_workspace_is_stopped_and_told(sandbox):
    async def run():
        limit = WorkspaceLimit(bytes=3 * MIB, files=100)
        files = {"old": "o", "log": "l"}
        async with opened(files, sandbox=sandbox, workspace_limit=limit) as workspace:
            outputs = [
                await workspace.shell("head -c 2M /dev/zero | tee a b > c; echo more >> log")
            ]
            outputs.append(await workspace.shell("ls; cat log"))
            outputs.append(
                await workspace.shell(
                    "i=0; while :; do head -c 1M /dev/zero > f$i; i=$((i+1)); sleep 0.1; done"
                )
            )
            outputs.append(
                await workspace.shell("for i in $(seq 150); do mkdir -p d/$i/e; done; ls")
            )
            outputs.append(await workspace.shell("ls d | wc -l; ls"))
            return outputs, await workspace.snapshot()

    (filled, left, endless, many, after), _ = asyncio.run(run())
    assert filled == ("[the workspace may hold 3 MiB in 100 files; removed: a, b]\n[exit code 0]")
    assert left == "c\nlog\nold\nlmore\n[exit code 0]"
    assert endless.endswith("[stopped: the workspace may hold 3 MiB in 100 files]")
    assert "removed: f0, f1" in endless
    assert "removed: d/" in many
    assert int(after.split()[0]) < 100


@both
def test_what_cannot_be_kept_does_not_outlive_its_command(sandbox):
    nested = 'python -c \'import os\nfor i in range(600): os.mkdir("dddd"); os.chdir("dddd")\''
    output = shell(f"mkfifo pipe; touch file; {nested}", "ls; find . | wc -l", sandbox=sandbox)
    names, count = output.split()[:2], output.split()[2]
    assert names == ["dddd", "file"]
    assert int(count) < 600


@both
def test_a_command_that_removes_everything_leaves_an_empty_workspace(sandbox):
    output = shell(
        'touch a; rm -rf "$HOME" "$TMPDIR" 2> /dev/null; chmod 000 . 2> /dev/null',
        "ls -A; touch $TMPDIR/x b; stat -c %a .; ls",
        files={"f": "x"},
        sandbox=sandbox,
    )
    assert output == "755\nb\n[exit code 0]"


def test_nothing_is_removed_from_a_folder_that_a_command_put_there(tmp_path):
    (tmp_path / "precious").write_text("x" * 1000)
    with pytest.raises(EnvironmentBroken, match="another folder in place of the workspace"):
        shell(
            f"cd ..; mv files other; ln -s {tmp_path} files",
            sandbox="none",
            workspace_limit=WorkspaceLimit(bytes=100),
        )
    assert (tmp_path / "precious").exists()


@both
def test_a_cancelled_command_is_over_when_the_cancellation_is(sandbox):
    mark = f"10{secrets.randbelow(10**9)}"

    async def run():
        async with opened(sandbox=sandbox) as workspace:
            job = asyncio.create_task(workspace.shell(f"sleep {mark}"))
            while not running(mark):
                await asyncio.sleep(0.01)
            job.cancel()
            await asyncio.wait([job])
            assert job.cancelled()
            assert not running(mark)
            return await workspace.shell("echo still here")

    assert asyncio.run(run()) == "still here\n[exit code 0]"


@both
@pytest.mark.parametrize("command", ["echo \0", "true " + "x" * 200_000])
def test_what_is_no_command_is_refused(sandbox, command):
    with pytest.raises(ToolSaysNo, match="a command is text"):
        shell(command, sandbox=sandbox)


@pytest.mark.parametrize("timeout", [0, -1, 31.0, float("nan")])
def test_a_timeout_is_one_that_is_allowed(timeout):
    with pytest.raises(ToolSaysNo, match="up to 30 s"):
        shell("true", sandbox="none", timeout=timeout, command_timeout=30.0)


def test_commands_of_many_workspaces_run_side_by_side(tmp_path):
    """None of them ends before all of them have begun."""
    wait = f'while test "$(ls {tmp_path} | wc -l)" -lt 20; do sleep 0.1; done'

    async def read_in_workspace(number):
        files = {"n": str(number)}
        async with opened(files, sandbox="none") as workspace:
            return await workspace.shell(f"touch {tmp_path}/{number}; {wait}; cat n")

    async def run():
        return await asyncio.gather(*(read_in_workspace(number) for number in range(20)))

    assert asyncio.run(run()) == [f"{number}\n[exit code 0]" for number in range(20)]


@pytest.mark.parametrize(
    "options",
    [
        {"sandbox": "docker"},
        {"command_timeout": 0},
        {"output_limit": 0},
        {"env": {"HOME": "/"}},
        {"env": {"A=": "1"}},
        {"tools": ["shell", "browser"]},
        {"read_only": ["relative"]},
        {"read_only": ["/"]},
        {"files": "/does/not/exist"},
        {"files": {"a": 1}},
    ],
)
def test_what_makes_no_sense_is_refused_when_it_is_made(options):
    with pytest.raises(UsageError):
        Workspace(**options)


def test_limits_that_make_no_sense_are_refused():
    for make in (
        lambda: ResourceLimits(memory=0),
        lambda: ResourceLimits(niceness=-1),
        lambda: WorkspaceLimit(bytes=0),
    ):
        with pytest.raises(UsageError):
            make()
