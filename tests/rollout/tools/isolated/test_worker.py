"""Isolated tools and the process that drives them: where functions are found, and how it ends."""

import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from support.processes import is_alive, wait_until

TOOLS = """
import os, sys, time
from holdfast.rollout.tools.tool import tool

@tool(isolated=True)
def where() -> str:
    return f"{os.getpid()} {__name__}"

@tool(isolated=True)
def wait(file: str) -> None:
    with open(file + ".part", "w") as out:
        out.write(str(os.getpid()))
    os.rename(file + ".part", file)
    time.sleep(600)
"""
CALL = """
import asyncio
from holdfast.records.errors import HoldfastError
def call(one, **arguments):
    try:
        print(asyncio.run(one.invoke(arguments)), flush=True)
    except HoldfastError as error:
        print(type(error).__name__, error, flush=True)
"""


def write(path: Path, *parts: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(textwrap.dedent(part) for part in parts))
    return path


def python(*arguments: object, cwd: Path, **options) -> subprocess.CompletedProcess:
    command = [sys.executable, "-W", "error", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=200, **options)


def test_processes_end_with_a_driver_that_exits_and_nothing_is_warned_about(tmp_path):
    script = write(tmp_path / "script.py", TOOLS, CALL, 'if __name__ == "__main__": call(where)\n')
    done = python(script, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    pid, name = done.stdout.split()
    assert name == "script"
    wait_until(lambda: not is_alive(int(pid)))


def test_processes_die_with_a_driver_that_is_killed_in_the_middle_of_a_call(tmp_path):
    file = tmp_path / "pid"
    run = f'if __name__ == "__main__": call(wait, file={str(file)!r})\n'
    script = write(tmp_path / "script.py", TOOLS, CALL, run)
    with subprocess.Popen([sys.executable, script], cwd=tmp_path) as driver:
        wait_until(file.exists)
        worker = int(file.read_text())
        assert is_alive(worker)
        driver.send_signal(signal.SIGKILL)
    wait_until(lambda: not is_alive(worker))


def test_a_process_outlives_the_thread_that_asked_for_it(tmp_path):
    run = """
    import threading
    if __name__ == "__main__":
        for _ in range(2):
            thread = threading.Thread(target=call, args=(where,))
            thread.start()
            thread.join()
    """
    done = python(write(tmp_path / "script.py", TOOLS, CALL, run), cwd=tmp_path)
    first, second = done.stdout.splitlines()
    assert first == second


@pytest.mark.parametrize("way", ["script", "module", "imported"])
def test_a_module_of_a_package_is_found_however_it_was_started(tmp_path, way):
    write(tmp_path / "pack" / "__init__.py", "")
    write(tmp_path / "pack" / "words.py", "WORD = 'kelp'\n")
    relative = "" if way == "script" else "from .words import WORD\n"
    run = 'if __name__ == "__main__": call(where)\n'
    write(tmp_path / "pack" / "tools.py", relative, TOOLS, CALL, run)
    write(tmp_path / "main.py", "from pack.tools import call, where\n", run)
    arguments = {
        "script": ["pack/tools.py"],
        "module": ["-m", "pack.tools"],
        "imported": ["main.py"],
    }[way]
    done = python(*arguments, cwd=tmp_path)
    assert done.stdout.split()[1:] == ["tools" if way == "script" else "pack.tools"], done.stderr


def test_a_file_whose_name_belongs_to_another_module_is_still_the_one_that_is_meant(tmp_path):
    write(tmp_path / "elsewhere" / "json.py", TOOLS)
    run = """
    import importlib.util, sys
    spec = importlib.util.spec_from_file_location("json", "elsewhere/json.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    call(module.where)
    """
    done = python(write(tmp_path / "main.py", CALL, run), cwd=tmp_path)
    assert done.stdout.split()[1:] == ["isolated_json"], (done.stdout, done.stderr)


@pytest.mark.parametrize(
    ("trouble", "arguments"),
    [
        ("raise ValueError('only once')", "cannot be imported .*ValueError: only once"),
        ("raise SystemExit(3)", r"cannot be imported .*SystemExit\(3\)"),
        ("del where", "AttributeError: .*has no attribute 'where'"),
    ],
)
def test_a_module_that_does_not_import_there_says_why(tmp_path, trouble, arguments):
    run = f"""
    if __name__ == "__main__": call(where)
    else: {trouble}
    """
    done = python(write(tmp_path / "script.py", TOOLS, CALL, run), cwd=tmp_path)
    assert re.search(f"(EnvironmentBroken|RaisedElsewhere).*{arguments}", done.stdout, re.DOTALL), (
        done.stdout,
        done.stderr,
    )


def test_a_script_that_calls_while_it_is_imported_is_told_so_and_starts_no_avalanche(tmp_path):
    done = python(write(tmp_path / "script.py", TOOLS, CALL, "call(where)\n"), cwd=tmp_path)
    inner, outer = done.stdout.splitlines()
    assert inner.startswith("UsageError")
    assert '`if __name__ == "__main__":`' in inner
    assert outer.endswith("script")


def test_a_fork_of_the_driver_has_processes_of_its_own(tmp_path):
    run = """
    if __name__ == "__main__":
        call(where)
        child = os.fork()
        call(where)
        if child:
            os.waitpid(child, 0)
            call(where)
    """
    done = python(write(tmp_path / "script.py", TOOLS, CALL, run), cwd=tmp_path)
    lines = done.stdout.splitlines()
    assert len(lines) == 4, (done.stdout, done.stderr)
    assert lines.count(lines[0]) == 3
    assert len(set(lines)) == 2
    wait_until(lambda: not any(is_alive(int(line.split()[0])) for line in lines))


def test_the_environment_and_the_folder_are_those_of_the_driver(tmp_path):
    more = """
    @tool(isolated=True)
    def surroundings() -> str:
        return f"{os.environ['KELP']} {os.getcwd()}"
    if __name__ == "__main__": call(surroundings)
    """
    script = write(tmp_path / "script.py", TOOLS, CALL, more)
    done = python(script, cwd=tmp_path, env={**os.environ, "KELP": "green"})
    assert done.stdout.split() == ["green", str(tmp_path)]


def test_tools_of_a_file_that_the_command_line_loads_are_found(tmp_path):
    run = """
    from pathlib import Path
    from holdfast.cli.setup.user_code import load_module
    call(load_module(Path("json.py")).where)
    """
    write(tmp_path / "sub" / "json.py", TOOLS)
    script = write(tmp_path / "main.py", CALL, run.replace("json.py", "sub/json.py"))
    assert python(script, cwd=tmp_path).stdout.split()[1:] == ["rollout_file_json"]
