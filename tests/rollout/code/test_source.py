"""Source counts without comments and layout, and evaluations are not part of a class."""

import pytest

from holdfast.rollout.code.fingerprint import fingerprint_of
from holdfast.rollout.code.source import function_source
from support.rollout.project import Project


def test_comments_and_layout_are_no_part_of_it(project: Project) -> None:
    before = {"agent": "async def solve(t):\n    'Solves.'\n    return f(1, 'a')\n"}
    text = "# Hi.\nasync def solve(\n  t,\n):\n  'Solves.'  # It does.\n\n  return f(1, \"a\")\n"
    assert not project.changed(before, agent=text)
    assert project.changed(before, agent=before["agent"].replace("(1,", "(2,")) == ["solve"]


def test_docstrings_are_part_of_it_since_models_are_shown_them(project: Project) -> None:
    before = {"agent": "async def solve(t):\n    'Solves.'\n"}
    assert project.changed(before, agent=before["agent"].replace("Solves", "Looks")) == ["solve"]


def test_branches_are_not_taken_for_each_other(project: Project) -> None:
    before = {"agent": "async def solve(t):\n    if t:\n        a()\n    else:\n        b()\n"}
    both = "async def solve(t):\n    if t:\n        a()\n        b()\n"
    assert project.changed(before, agent=both) == ["solve"]


@pytest.mark.parametrize(
    "body",
    [
        "    if t: pass\n" + "".join(f"    elif t == {n}: pass\n" for n in range(300)),
        f"    return {' + '.join(['t'] * 1_500)}\n",
        f"    return {hex(10**5000)}\n",
        "    return '\\ud800'\n",
    ],
)
def test_code_with_a_deep_syntax_tree_counts_as_any_other(project: Project, body: str) -> None:
    before = {"agent": f"async def solve(t):\n{body}"}
    assert not project.changed(before, agent=before["agent"] + "# a comment\n")
    assert project.changed(before, agent=before["agent"] + "    return 1\n") == ["solve"]


def test_lambdas_and_functions_of_one_name_in_a_file_are_apart() -> None:
    first, second = (lambda t: 0.1), (lambda t: 0.9 if t else 0)
    # fmt: off
    inner, outer = (lambda t: 1), (lambda t: lambda t: 1)
    # fmt: on
    assert len(set(map(fingerprint_of, (first, second, inner, outer)))) == 4

    def again(t):
        return 0.1

    before = fingerprint_of(again)

    def again(t):
        return 0.9

    assert fingerprint_of(again) != before


def test_classes_of_one_name_in_a_file_are_apart() -> None:
    def made(way: int) -> object:
        if way:

            class Solve:
                def __call__(self, t):
                    return 1
        else:

            class Solve:
                def __call__(self, t):
                    return 2

        return Solve()

    assert fingerprint_of(made(0)) != fingerprint_of(made(1))


def test_code_without_a_source_counts_by_what_it_names_and_says() -> None:
    def made(text: str) -> object:
        namespace: dict[str, object] = {"__name__": "__main__"}
        exec(text, namespace)
        return namespace["solve"]

    texts = [
        *("def solve(t): return ask(t)", "def solve(t): return tell(t)"),
        *("def solve(t): return 'a'", "def solve(t): return 'b'"),
        "class solve:\n    def __call__(self, t): return 'a'",
    ]
    assert len({fingerprint_of(made(text)) for text in texts}) == len(texts)
    assert all(fingerprint_of(made(text)) == fingerprint_of(made(text)) for text in texts)


def test_a_file_that_cannot_be_parsed_any_more_has_a_fingerprint(project: Project) -> None:
    solve = project.load(agent="async def solve(t): ...\n")["agent"].solve
    project.write(agent="async def solve(t: ...\n")
    assert fingerprint_of(solve)


EVALUATED = """
import §judge as judge
from holdfast.evaluation import evaluation_test

class TestIt:
    LIMIT = 1

    @evaluation_test(dataset=[{"prompt": "a"}], passed_threshold=0.5)
    def test_it(self, row): return judge.score(row)

    def solve(self, t): return 1

solve = TestIt().solve
"""


def test_evaluations_are_no_part_of_the_class_that_they_stand_in(project: Project) -> None:
    files = {"agent": EVALUATED, "judge": "def score(row): return 1\n"}
    assert not project.changed(files, judge="def score(row): return 2\n")
    assert not project.changed(files, agent=EVALUATED.replace("0.5", "0.6"))
    assert project.changed(files, agent=EVALUATED.replace("t): return 1", "t): return 2"))


def test_names_have_the_attributes_that_are_read_of_them() -> None:
    async def solve(t):
        first.second.third(fourth().fifth)
        sixth.seventh = t.eighth

    assert function_source(solve).names == {"first.second.third", "fourth"}


first = fourth = sixth = None
