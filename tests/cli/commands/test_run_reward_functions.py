"""Functions of verl and TRL as scorers: called as their framework calls them."""

import json
from pathlib import Path

import pytest

from holdfast.cli.setup.user_code import scorer_place, scorer_reference
from holdfast.engine.scoring.reward_functions import RewardFunction
from holdfast.records.errors import UsageError
from holdfast.records.exit_codes import Exit
from holdfast.records.task import as_tasks
from holdfast.rollout.code.fingerprint import fingerprinted
from holdfast.testing import FakeEngine
from support.cli.shell import CommandLine

FUNCTIONS = """
import json


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    right = solution_str == ground_truth
    return {"score": float(right), "source": data_source, "level": extra_info["level"]}


async def later(data_source, solution_str, ground_truth, extra_info=None):
    return compute_score(data_source, solution_str, ground_truth, extra_info)


def accuracy(prompts, completions, solution, **columns):
    assert len(prompts) == len(completions) == len(columns["completion_ids"]) == 1
    assert prompts[0][-1]["role"] == "user"
    return [float(reply[-1]["content"] == wanted) for reply, wanted in zip(completions, solution)]


def length(prompts, completions, completion_ids, **columns):
    assert prompts == ["What is 1 + 4?"], prompts
    assert len(completion_ids[0]) > 3
    return [float(len(completion)) for completion in completions]


def every_token(completions, completion_ids, **columns):
    return [float(len(completion_ids[0]))]


def unsure(completions, **columns):
    return [None]


def two(completions, **columns):
    return [1.0, 2.0]
"""
TURN = """
async def solve(t):
    t.add(*t.task.messages)
    await t.generate(max_tokens=12)
"""
ROWS = [
    {
        "data_source": "sums",
        "prompt": [{"role": "user", "content": "What is 1 + 4?"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": {"split": "train", "index": number, "level": number},
        "solution": truth,
    }
    for number, truth in enumerate(("Five.", "six"))
]


@pytest.fixture
def rewards(shell: CommandLine) -> CommandLine:
    shell.write("rewards.py", FUNCTIONS)
    shell.write("turn.py", TURN)
    shell.write("tasks.jsonl", "".join(f"{json.dumps(row)}\n" for row in ROWS))
    return shell


def run(shell: CommandLine, scorer: str, *arguments: object):
    with FakeEngine(replies=["Five."]) as engine:
        return shell.run(
            "--scorer", scorer, *arguments, rollout="turn.py", policy=engine.url, model=engine.model
        )


@pytest.mark.parametrize("arguments", [(), ("--score-workers", 1)])
@pytest.mark.parametrize(
    "scorer", ["verl:rewards.py", "verl:rewards.py:later", "trl:rewards.py:accuracy"]
)
def test_a_function_gives_the_rewards_of_a_run(
    rewards: CommandLine, scorer: str, arguments
) -> None:
    done = run(rewards, scorer, *arguments)
    assert done.code == 0, done.err
    rows = [json.loads(line) for line in rewards.export("trajectories").splitlines()]
    assert sorted(row["reward"] for row in rows) == [0.0, 1.0]


def test_a_parquet_file_of_verl_is_read_as_it_is(rewards: CommandLine) -> None:
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.Table.from_pylist(ROWS)
    pyarrow.parquet.write_table(table, rewards.place / "train.parquet")
    with FakeEngine(replies=["Five."]) as engine:
        done = rewards.run(
            "--scorer", "verl:rewards.py", rollout="turn.py", tasks="train.parquet",
            policy=engine.url, model=engine.model,
        )  # fmt: skip
    assert done.code == 0, done.err
    assert "mean reward: 0.5" in done.out


def test_the_ground_truth_of_verl_is_the_tasks_and_no_rollout_sees_it_elsewhere() -> None:
    (task, other) = as_tasks([ROWS[0], {**ROWS[0], "ground_truth": "own"}])
    assert task.ground_truth == "Five."
    assert task.metadata["reward_model"] == {"style": "rule"}
    assert other.ground_truth == "own"


@pytest.mark.parametrize(
    ("scorer", "code", "line"),
    [
        ("trl:rewards.py", Exit.USAGE, "name the function: trl:rewards.py:NAME"),
        ("trl:rewards.py:acuracy", Exit.USAGE, "is 'accuracy' meant?"),
        ("verl:rewards.py:accuracy", Exit.USAGE, "reward function of verl"),
        ("trl:rewards.py:compute_score", Exit.USAGE, "reward function of trl"),
        (
            "trl:rewards.py:accuracy",
            Exit.USAGE,
            "(odd): accuracy as a reward function of trl: missing a required argument: 'solution'",
        ),
        ("rewards.py:accuracy", Exit.USAGE, "write --scorer trl:rewards.py:accuracy"),
        ("rewards.py:compute_score", Exit.USAGE, "write --scorer verl:rewards.py:compute_score"),
        ("rewards.py:unsure", Exit.USAGE, "write --scorer trl:rewards.py:unsure"),
        ("tlr:rewards.py:accuracy", Exit.USAGE, "is trl:rewards.py:accuracy meant?"),
        ("trl-text:rewards.py:accuracy", Exit.USAGE, "is trl:rewards.py:accuracy meant?"),
        ("verll:rewards.py", Exit.USAGE, "is verl:rewards.py meant?"),
        ("tlr:accuracy", Exit.USAGE, "is trl:accuracy meant?"),
    ],
)
def test_what_cannot_be_called_is_refused_before_anything_is_sampled(
    rewards: CommandLine, scorer: str, code: Exit, line: str
) -> None:
    if "odd" in line:
        row = {"id": "odd", "prompt": "?", "ground_truth": 1, "level": 2}
        rewards.write("tasks.jsonl", json.dumps(row))
    done = run(rewards, scorer)
    assert done.code == code, done.err
    assert line in done.err
    assert done.err.count("\n") == 1
    if "odd" in line:
        assert "tasks.jsonl:1 (odd)" in done.err
        assert "the row has level, ground_truth, id (name an argument after" in done.err
    assert not rewards.journal.exists()


def test_texts_are_given_where_the_prompt_is_a_text(rewards: CommandLine) -> None:
    rewards.write("tasks.jsonl", json.dumps({"prompt": "What is 1 + 4?"}))
    done = run(rewards, "trl:rewards.py:length", "--system", "Be short.")
    assert done.code == 0, done.err
    assert "mean reward: 5.0" in done.out


def test_the_tokens_are_those_of_the_whole_conversation_after_the_prompt(
    rewards: CommandLine,
) -> None:
    rewards.write("turn.py", TURN + "    t.add('And 2 + 3?')\n    await t.generate()\n")
    assert run(rewards, "trl:rewards.py:every_token").code == 0
    rows = [json.loads(line) for line in rewards.export("trajectories").splitlines()]
    (ids, *_) = [json.loads(line) for line in rewards.export("samples").splitlines()]
    prompt = ids["loss_mask"].index(1)
    assert rows[0]["reward"] == len(ids["token_ids"]) - prompt > sum(ids["loss_mask"])


def test_none_is_no_score_and_two_scores_are_too_many(rewards: CommandLine) -> None:
    done = run(rewards, "trl:rewards.py:unsure")
    assert done.code == 0, done.err
    rows = [json.loads(line) for line in rewards.export("trajectories").splitlines()]
    assert [row["reward"] for row in rows] == [None, None]
    many = run(rewards, "trl:rewards.py:two", "--new")
    assert many.code == Exit.NOTHING
    assert "return a list of 1" in many.out + many.err


def test_another_function_or_framework_is_another_scorer() -> None:
    def f(prompts: object, completions: object, **columns: object) -> list[float]:
        return [1.0]

    def g(prompts: object, completions: object, **columns: object) -> list[float]:
        return [2.0]

    results = [RewardFunction(f, "trl"), RewardFunction(f, "verl"), RewardFunction(g, "trl")]
    assert len({fingerprinted(each)[0] for each in results}) == 3
    assert fingerprinted(RewardFunction(f, "trl"))[0] == fingerprinted(results[0])[0]


@pytest.mark.parametrize("reference", ["verl:a/b.py:f", "trl:b.py:f", "b.py:f"])
def test_a_reference_is_written_as_it_is_read(reference: str) -> None:
    file, name = scorer_place(Path("own.py"), reference)
    assert scorer_reference(str(file), name) == reference


def test_a_class_is_no_reward_function() -> None:
    with pytest.raises(UsageError, match="names a function"):
        RewardFunction(dict, "trl")
