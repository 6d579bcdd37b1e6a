"""A fingerprint is the same wherever the program lies and however it is started."""

import shutil
import sys
from pathlib import Path

import pytest

from holdfast.records.run import RunSpec
from holdfast.records.sampling import Sampling
from holdfast.rollout.code.fingerprint import fingerprint_of, fingerprinted
from holdfast.rollout.processors.agent import AgentRolloutProcessor
from holdfast.rollout.processors.processor import FunctionProcessor
from holdfast.rollout.tools.tool import Tool
from support.rollout.project import Project

MAIN = """
from pathlib import Path
from . import helper
from holdfast.rollout.code.fingerprint import fingerprint_of

HERE = Path(__file__).parent

async def solve(t): t.add(helper.PROMPT, HERE)

if __name__ == "__main__":
    print(fingerprint_of(solve))
"""


def test_it_is_the_same_in_every_folder_and_as_the_main_module(
    project: Project, tmp_path_factory: pytest.TempPathFactory
) -> None:
    project.write(
        package__in____init__="", package__in__main=MAIN, package__in__helper="PROMPT = 'a'\n"
    )
    name = f"{project.mark}_package.main"
    before = project.python("-m", name)
    assert project.python("-c", f"from {name} import *; print(fingerprint_of(solve))") == before
    project.folder = Path(shutil.copytree(project.folder, tmp_path_factory.mktemp("there") / "x"))
    assert project.python("-m", name) == before
    project.write(package__in__helper="PROMPT = 'b'\n")
    assert project.python("-m", name) != before


def test_a_function_and_the_processor_that_is_made_of_it_are_the_same(project: Project) -> None:
    solve = project.load(agent="async def solve(t): ...\n")["agent"].solve
    assert fingerprint_of(solve) == fingerprint_of(FunctionProcessor(solve))
    assert fingerprint_of(solve).startswith("solve@")


def test_what_a_processors_tools_name_is_part_of_it_and_named(project: Project) -> None:
    def parts(result: str) -> dict[str, str]:
        modules = project.load(
            texts=f"FOUND = {result!r}\n",
            tools="from §texts import FOUND\ndef look(word: str) -> str:\n    'Looks.'\n"
            "    return FOUND\n",
        )
        return fingerprinted(AgentRolloutProcessor(tools=[Tool(modules["tools"].look)]))[1].parts

    changed = {name for name, _ in parts("found").items() ^ parts("lost").items()}
    assert changed == {"FOUND", "AgentRolloutProcessor.identity"}


def test_a_function_counts_wherever_it_lies_and_what_a_library_names_does_not(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = project.folder / "lib" / "site-packages"
    installed.mkdir(parents=True)
    monkeypatch.syspath_prepend(str(installed))
    library = installed / f"{project.mark}_agent.py"

    def now(text: str) -> str:
        library.write_text(text)
        sys.modules.pop(f"{project.mark}_agent", None)
        return fingerprint_of(project.load(agent=text)["agent"].solve)

    project.write(agent="")
    (project.folder / f"{project.mark}_agent.py").unlink()
    project.folder = installed
    text = "def ask(t): return 1\nasync def solve(t): return ask(t)\n"
    assert now(text) == now(text.replace("return 1", "return 2"))
    assert now(text) != now(text.replace("ask(t)\n", "ask(2)\n"))


def test_a_refusal_names_the_functions_and_values_that_differ() -> None:
    def spec(parts: dict[str, str]) -> RunSpec:
        from holdfast.records.run import Code

        name = f"solve@{sorted(parts.items())}"
        return RunSpec("r", 1, "m", Sampling(), None, name, "", "", "", rollout_code=Code(parts))

    before = spec({"solve": "1", "ask": "2", "OLD": "3"})
    (line,) = before.differences(spec({"solve": "1", "ask": "3", "NEW": "4"}))
    assert line.endswith(" (changed: ask, NEW, OLD)")
    (line,) = before.differences(spec({f"part{n}": "1" for n in range(9)}))
    assert line.endswith(" (changed: part0, part1, part2, part3, part4, 7 more)")
