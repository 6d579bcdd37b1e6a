"""A scorer is its function and what that names; the rollout, and other evaluations, are not."""

from holdfast.evaluation.definition.definition import Definition, scorer_fingerprint, variants_of
from support.rollout.project import Project, project

__all__ = ["project"]

FILE = """
from holdfast.evaluation import evaluation_test

LIMIT = 1
seen = {}

def helper(row): return seen.get(row, 0) > LIMIT

def later(t): return below()

async def solve(t):
    await t.generate()
    seen[t] = below()

@evaluation_test(dataset=[{"prompt": "a"}], rollout_processor=solve, passed_threshold=0.5)
def test_one(row): return helper(row) + 1

class TestAll:
    def own(self): return 1

    @evaluation_test(dataset=[{"prompt": "a"}], rollout_processor=solve)
    def test_two(self, row): return helper(row) + 2

def below(): return 1
"""


def fingerprints(project: Project, old: str = "", new: str = "") -> list[str]:
    """Of the rollout, and of the two scorers."""
    assert old in FILE
    module = project.load(test_it=FILE.replace(old, new))["test_it"]
    first: Definition = module.test_one.__holdfast__
    second: Definition = module.TestAll.test_two.__holdfast__
    arguments = {"self": module.TestAll()}
    return [
        first.rollout[0],
        scorer_fingerprint(first, variants_of(first)[0])[0],
        scorer_fingerprint(second, variants_of(second)[0], arguments)[0],
    ]


def changed(project: Project, old: str, new: str) -> list[bool]:
    before, after = fingerprints(project), fingerprints(project, old, new)
    return [item != other for item, other in zip(before, after, strict=True)]


def test_each_has_a_code_of_its_own(project: Project) -> None:
    assert changed(project, "LIMIT = 1", "LIMIT = 2") == [False, True, True]
    assert changed(project, "helper(row) + 1", "helper(row) + 3") == [False, True, False]
    assert changed(project, "helper(row) + 2", "helper(row) + 3") == [False, False, True]
    assert changed(project, "own(self): return 1", "own(self): return 2") == [False, False, True]
    assert changed(project, "passed_threshold=0.5", "passed_threshold=0.6") == [False] * 3
    assert changed(project, "t.generate()", "t.generate(n=2)") == [True, False, False]


def test_what_stands_below_the_evaluation_counts(project: Project) -> None:
    assert changed(project, "below(): return 1", "below(): return 2") == [True, False, False]


def test_what_code_changes_while_it_runs_makes_no_other_evaluation(project: Project) -> None:
    module = project.load(test_it=FILE)["test_it"]
    definition: Definition = module.test_one.__holdfast__
    definition.read_code()
    (variant,) = variants_of(definition)
    before = definition.rollout, scorer_fingerprint(definition, variant)
    module.seen["a"] = 1
    assert (definition.rollout, scorer_fingerprint(definition, variant)) == before
