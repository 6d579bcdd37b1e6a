"""Ready scorers: what each takes for right, and that their settings are what makes them another."""

from types import SimpleNamespace

import pytest

from holdfast import scorers
from holdfast.records.errors import UsageError
from holdfast.rollout.code.fingerprint import fingerprinted
from holdfast.scorers import Contains, Exact, MultipleChoice, Numeric, Regex, ValidJson

POINT = {"type": "object", "required": ["x"], "properties": {"x": {"type": "number"}}}


def row(reply: object, ground_truth: object = None) -> SimpleNamespace:
    messages = [
        SimpleNamespace(role="user", content="?"),
        SimpleNamespace(role="assistant", content=reply),
        SimpleNamespace(role="tool", content="no reply"),
    ]
    return SimpleNamespace(messages=messages, ground_truth=ground_truth)


RIGHT = [
    (Exact(), " 42\n", 42),
    (Exact(ignore_case=True), "PARIS", ["Lutetia", "Paris"]),
    (Exact(answer="Answer: (.+)"), "Answer: 4\nNo. Answer: 5\n", "5"),
    (Exact(answer=r"\d+"), "It is 5.", 5),
    (Contains(), "It's 42!", 42),
    (Contains(ignore_case=True), "in paris.", "Paris"),
    (Numeric(), "12 + 30 = 42.", 42),
    (Numeric(), "about $1,234.50", "#### 1234.5"),
    (Numeric(), "10-5", 5),
    (Numeric(), "x=-5", "-5"),
    (Numeric(), "x \N{MINUS SIGN}5", -5),
    (Numeric(), "2.5e3", 2500),
    (Numeric(), r"\boxed{\frac{3}{4}}", 0.75),
    (Numeric(), "0.1", 0.1),
    (Numeric(tolerance=0.01), "3.14", 3.14159),
    (Numeric(relative=0.01), "-101", [7, -100]),
    (Numeric(answer="<answer>(.*)</answer>"), "<answer>4</answer> of 5", 4),
    (MultipleChoice(), "The answer is B. A is wrong.", "B"),
    (MultipleChoice(), "(C)", 2),
    (MultipleChoice("xyz"), "z", "z"),
    (MultipleChoice(answer="<(.)>"), "A or B: <B>", "B"),
    (Regex(r"\bcat\b"), "a cat", None),
    (Regex(), "a cat", "c.t"),
    (ValidJson(POINT), '{"x": 1.5}', None),
    (ValidJson(), 'Here:\n```json\n{"x": 1}\n```\nDone.', POINT),
]
WRONG = [
    (Exact(), "It is 42.", 42),
    (Exact(answer="Answer: (.+)"), "5", "5"),
    (Contains(), "142", 42),
    (Contains(), "42.5", 42),
    (Contains(), "4.42", 42),
    (Numeric(), "142", 42),
    (Numeric(), "42 of 100", 42),
    (Numeric(), "none", 42),
    (Numeric(), "version v42", 42),
    (Numeric(), "1/0", 42),
    (Numeric(), "1e" + "9" * 30, 42),
    (Numeric(), "9" * 5000, 42),
    (Numeric(tolerance=0.001), "3.14", 3.14159),
    (MultipleChoice(), "A or B", "A"),
    (MultipleChoice(), "ABC", "A"),
    (Regex("^cat$"), "a cat", None),
    (ValidJson(POINT), '{"x": "1"}', None),
    (ValidJson(POINT), "x is 1", None),
    (ValidJson(POINT), "[" * 100_000, None),
]


@pytest.mark.parametrize(("scorer", "reply", "ground_truth"), RIGHT)
def test_what_is_right_gets_1(scorer: scorers.Exact, reply: str, ground_truth: object) -> None:
    assert scorer(row(reply, ground_truth)).reward == 1.0


@pytest.mark.parametrize(("scorer", "reply", "ground_truth"), WRONG)
def test_what_is_wrong_gets_0(scorer: scorers.Exact, reply: str, ground_truth: object) -> None:
    assert scorer(row(reply, ground_truth)).reward == 0.0


def test_the_share_of_texts_that_a_reply_contains() -> None:
    score = Contains(all=True)(row("red and blue", ["red", "green", "blue", "black"]))
    assert (score.reward, score.reasons["answer"]) == (0.5, "red, blue")


def test_a_score_says_what_was_read_as_the_answer() -> None:
    assert Numeric()(row("first 7, then 142", 42)).reasons == {"answer": "142"}
    assert Numeric()(row("none at all", 42)).reasons == {"answer": "none"}
    assert len(Exact()(row("x" * 9000, 1)).reasons["answer"]) < 300


def test_a_reply_in_parts_is_read_and_a_missing_one_is_wrong() -> None:
    assert Numeric()(row([SimpleNamespace(text="42"), SimpleNamespace()], 42)).reward == 1.0
    assert Numeric()(SimpleNamespace(messages=[], ground_truth=42)).reward == 0.0
    with pytest.raises(UsageError, match="a finished trajectory, or a row"):
        Numeric()("42")


def test_other_settings_are_another_scorer_and_equal_ones_are_the_same() -> None:
    different = [
        *(Exact(), Exact(ignore_case=True), Exact(answer=".")),
        *(Contains(), Contains(ignore_case=True), Contains(all=True)),
        *(Numeric(), Numeric(tolerance=0.1), Numeric(relative=0.1), Numeric(answer=".")),
        *(
            MultipleChoice(),
            MultipleChoice("ABCDE"),
            Regex(),
            Regex("a"),
            ValidJson(),
            ValidJson({}),
        ),
        *(scorers.CodeTests(), scorers.CodeTests(partial=True), scorers.CodeTests(timeout=5)),
    ]
    assert len({fingerprinted(scorer)[0] for scorer in different}) == len(different)
    assert fingerprinted(Numeric(tolerance=1))[0] == fingerprinted(Numeric(tolerance=1))[0]


def test_a_function_that_names_one_is_another_with_other_settings(tmp_path) -> None:
    source = "from holdfast.scorers import Numeric\nnear = Numeric(tolerance={})\n"
    source += "def score(trajectory):\n    return near(trajectory)\n"
    digests = set()
    for tolerance in (0.0, 0.1):
        file = tmp_path / f"f{len(digests)}.py"
        file.write_text(source.format(tolerance))
        scope = {"__name__": "named"}
        exec(compile(file.read_text(), str(file), "exec"), scope)
        digests.add(fingerprinted(scope["score"])[0])
    assert len(digests) == 2


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: Numeric(tol=1), "is 'tolerance' meant?"),
        (lambda: Numeric(tolerance="near"), "tolerance must be a number"),
        (lambda: Numeric(tolerance=-1), "0 or more"),
        (lambda: Exact(answer="("), "answer is not a regular expression"),
        (lambda: Regex("("), "pattern is not a regular expression"),
        (lambda: MultipleChoice("AA"), "different characters"),
        (lambda: ValidJson({"properties": {"x": {"format": "date"}}}), "does not check format"),
        (lambda: scorers.CodeTests(sandbox="docker"), "sandbox"),
    ],
)
def test_a_wrong_setting_is_refused_in_one_line(make, line: str) -> None:
    with pytest.raises(UsageError, match=line.replace("?", r"\?")) as refusal:
        make()
    assert "\n" not in str(refusal.value)


def test_a_property_may_be_called_like_a_rule_that_is_not_checked() -> None:
    schema = {"properties": {"format": {"type": "string"}}, "required": ["format"]}
    assert ValidJson(schema)(row('{"format": "x"}')).reward == 1.0


@pytest.mark.parametrize(
    ("scorer", "ground_truth"),
    [
        (Exact(), None),
        (Exact(), []),
        (Contains(), {"a": 1}),
        (Numeric(), "none"),
        (Numeric(), True),
        (Numeric(), [1, None]),
        (MultipleChoice(), "E"),
        (MultipleChoice(), 4),
        (MultipleChoice(), True),
        (Regex(), 5),
        (Regex(), "("),
        (ValidJson(), "x"),
        (ValidJson(), {"oneOf": []}),
        (scorers.CodeTests(), None),
        (scorers.CodeTests(), "assert ("),
        (scorers.CodeTests(), {"test_x.py": 5}),
    ],
)
def test_a_task_that_cannot_be_scored_is_named(scorer: Exact, ground_truth: object) -> None:
    from holdfast.engine.scoring.scorer import Scorer
    from holdfast.records.task import as_tasks

    (task,) = as_tasks([{"id": "bad-row", "prompt": "?", "ground_truth": ground_truth}])
    with pytest.raises(UsageError, match="task bad-row: ") as refusal:
        Scorer(scorer).check_tasks([task])
    assert "\n" not in str(refusal.value)


def test_a_ground_truth_under_another_name_is_named() -> None:
    from holdfast.engine.scoring.scorer import Scorer
    from holdfast.records.task import as_tasks

    (task,) = as_tasks([{"prompt": "?", "target": "42"}])
    with pytest.raises(UsageError, match="it has 'target': --columns ground_truth=target"):
        Scorer(Exact()).check_tasks([task])


@pytest.mark.parametrize(
    ("reply", "chosen"),
    [
        ("The answer is B", "B"),
        ("Answer: B, because C is smaller", "B"),
        ("The answer is B, not C.", "B"),
        ("B or C", "none"),
        ("The answer is B or C", "none"),
        ("Answer: B or maybe (C)", "none"),
        ("Answer: B/C", "none"),
        ("ANSWER: A,C", "A, C"),
        ("The answers are A, B, and D.", "A, B, D"),
        ("Answer: b", "none"),
        ("Answer: B (or maybe C)", "none"),
        ("Answer: B\nA is wrong.", "B"),
    ],
)
def test_a_reply_that_leaves_the_choice_open_has_chosen_nothing(reply: str, chosen: str) -> None:
    scorer = MultipleChoice()
    assert scorer.score(reply, scorer.wanted("B")).reasons == {"answer": chosen}
    assert scorer.score(reply, scorer.wanted("B")).reward == float(chosen == "B")
    assert scorer.score(reply, scorer.wanted(["C", 0])).reward == float(chosen == "A, C")


def test_the_case_of_a_label_may_be_ignored() -> None:
    scorer = MultipleChoice(ignore_case=True)
    assert scorer.score("answer: b", scorer.wanted("B")).reward == 1
    assert scorer.score("answer: B", scorer.wanted(["b"])).reward == 1
    with pytest.raises(UsageError, match="labels are different characters"):
        MultipleChoice("aA", ignore_case=True)
