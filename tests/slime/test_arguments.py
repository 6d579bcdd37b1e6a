"""slime's arguments: each is followed, or refused before anything is sampled."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest

import holdfast
from holdfast.embedded.model.files import TINY
from holdfast.records.errors import UsageError
from support.paths import TESTS
from support.slime.arguments import evaluation

PACKAGE = TESTS / "support" / "slime" / "package"


def sampling_of(folder: Path, run: str) -> holdfast.Sampling:
    """Of a recorded run."""

    async def read():
        journal = holdfast.open_journal(folder / "holdfast.db", read_only=True)
        try:
            return (await journal.find_run(run)).spec.sampling
        finally:
            await journal.close()

    return asyncio.run(read())


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"rollout_top_p": 0.9}, r"--rollout-top-p \(0.9\): logprobs would be"),
        ({"rollout_top_k": 5}, r"--rollout-top-k \(5\): logprobs would be"),
        ({"rollout_global_dataset": False}, "with --disable-rollout-global-dataset"),
        ({"partial_rollout": True}, r"--partial-rollout \(True\): it puts"),
        ({"over_sampling_batch_size": 3}, "--over-sampling-batch-size.*whatever their rewards"),
        ({"dynamic_sampling_filter_path": "a.b"}, "--dynamic-sampling-filter-path.*whatever"),
        ({"rollout_sample_filter_path": "a.b"}, "--rollout-sample-filter-path.*whatever"),
        ({"custom_generate_function_path": "a.b"}, "the rollout decides what is sampled"),
        ({"rm_type": "math"}, r"--rm-type \(math\): the scorer of the rollouts gives the reward"),
        ({"custom_rm_path": "a.b"}, "--custom-rm-path.*gives the reward"),
        ({"group_rm": True}, "--group-rm.*gives the reward"),
        ({"reward_key": "accuracy"}, "--reward-key.*a scorer gives one"),
        ({"eval_reward_key": "accuracy"}, "--eval-reward-key.*a scorer gives one"),
        ({"opd_type": "sglang"}, "--opd-type.*no logprobs of a teacher"),
        ({"holdfast_scorr": "a.py"}, "holdfast_scorr is not an argument.*is holdfast_scorer meant"),
    ],
)
def test_what_cannot_be_followed_is_refused_when_the_source_is_made(opened, engine, more, why):
    engine.reset()
    with pytest.raises(UsageError, match=why):
        opened(**more)
    assert engine.stats().requests == 0


def test_what_slime_fills_in_by_itself_is_taken(opened):
    opened(over_sampling_batch_size=2, opd_type="megatron", rollout_stop_token_ids=[], lr=1e-5)


def test_an_argument_that_no_table_has_is_named_where_it_is_set(opened):
    opened(of_a_later_slime=3)
    with pytest.warns(UserWarning, match="slime, and leaves them to it: --of-a-later-slime;"):
        opened(of_a_later_slime=4)


def test_tokens_that_stop_a_reply_are_followed(opened, tmp_path):
    args, source = opened(rollout_stop_token_ids=[7, 9])
    holdfast.slime.generate_rollout(args, 0, source)
    assert sampling_of(tmp_path, "slime").stop_token_ids == (7, 9)


def test_arguments_of_the_chat_template_are_followed_or_refused_at_once(opened, tmp_path):
    arguments = {"apply_chat_template_kwargs": {"enable_thinking": True}}
    with pytest.raises(UsageError, match="chat_template_kwargs cannot be followed"):
        opened(holdfast_renderer="template", **arguments)
    thinks = tmp_path / "thinks"
    shutil.copytree(TINY, thinks)
    with (thinks / "chat_template.jinja").open("a") as template:
        template.write("{% if enable_thinking %}" + "think! " * 50 + "{% endif %}")
    arguments |= {"hf_checkpoint": str(thinks), "holdfast_renderer": "template"}
    _, source = opened(**arguments)
    assert source._sampling.template_kwargs == {"enable_thinking": True}
    with pytest.raises(UsageError, match="no tasks with a prompt of at most 100 tokens"):
        opened(rollout_max_prompt_len=100, **arguments)


def test_an_evaluation_samples_as_its_own_arguments_say(opened, tmp_path):
    data = evaluation(
        "held-out",
        tmp_path / "data.jsonl",
        temperature=0.0,
        top_p=0.5,
        top_k=3,
        max_response_len=5,
        stop=["end"],
        repetition_penalty=1.5,
        n_samples_per_eval_prompt=2,
    )
    args, source = opened(eval_datasets=[data], rollout_stop_token_ids=[7])
    results = holdfast.slime.generate_rollout(args, 0, source, evaluation=True)
    assert len(results["held-out"]["rewards"]) == 16
    assert sampling_of(tmp_path, "slime-eval-held-out") == holdfast.Sampling(
        max_tokens=5,
        temperature=0.0,
        top_p=0.5,
        top_k=3,
        stop=("end",),
        stop_token_ids=(7,),
        repetition_penalty=1.5,
    )


def test_an_evaluation_without_arguments_of_its_own_samples_as_training_does(opened, tmp_path):
    args, source = opened(eval_datasets=[evaluation("held-out", tmp_path / "data.jsonl")])
    holdfast.slime.generate_rollout(args, 0, source, evaluation=True)
    holdfast.slime.generate_rollout(args, 0, source)
    sampling = sampling_of(tmp_path, "slime-eval-held-out")
    assert sampling == sampling_of(tmp_path, "slime")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rm_type", "math"),
        ("custom_rm_path", "a.b"),
        ("custom_generate_function_path", "a.b"),
        ("min_new_tokens", 3),
        ("min_eval_samples", 3),
        ("metadata_overrides", {"a": 1}),
    ],
)
def test_what_an_evaluation_cannot_follow_is_refused_when_the_source_is_made(
    opened, tmp_path, field, value
):
    data = evaluation("held-out", tmp_path / "data.jsonl", **{field: value})
    with pytest.raises(UsageError, match=rf"{field} of an evaluation \(--eval-config\) "):
        opened(eval_datasets=[data])


def test_an_evaluation_has_columns_of_its_own(opened, tmp_path):
    other = tmp_path / "other.jsonl"
    other.write_text(json.dumps({"question": "why?", "answer": "fine"}) + "\n")
    data = evaluation("other", other, input_key="question", label_key="answer")
    args, source = opened(eval_datasets=[data])
    (sample,) = holdfast.slime.generate_rollout(args, 0, source, evaluation=True)["other"][
        "samples"
    ]
    assert (sample.prompt[0]["content"], sample.label) == ("why?", "fine")


@pytest.mark.parametrize(
    ("part", "numbers"),
    [("[0:3]", [0, 1, 2]), ("[5:]", [5, 6, 7]), ("[-2:]", [6, 7]), ("[:-6]", [0, 1])],
)
def test_a_part_of_a_file_is_taken_as_slime_takes_it(opened, tmp_path, part, numbers):
    data = f"{tmp_path / 'data.jsonl'}@{part}"
    opened()  # Writes the file.
    _, source = opened(prompt_data=data)
    assert [str(task.messages[0].content) for task in source._tasks] == [
        f"do task {number}" for number in numbers
    ]
    with pytest.raises(UsageError, match="has no tasks"):
        opened(prompt_data=f"{tmp_path / 'data.jsonl'}@[8:9]")


def test_prompts_that_are_too_long_are_left_out(opened, tmp_path, caplog):
    data = tmp_path / "lengths.jsonl"
    rows = [{"input": "x" * length, "label": "fine"} for length in (1, 500, 2)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    _, source = opened(prompt_data=str(data), rollout_max_prompt_len=100)
    assert [len(str(task.messages[0].content)) for task in source._tasks] == [1, 2]
    assert "1 prompts are longer than 100 tokens, and left out" in caplog.text
    with pytest.raises(UsageError, match="no tasks with a prompt of at most 1 tokens"):
        opened(prompt_data=str(data), rollout_max_prompt_len=1)


def test_placeholders_need_our_rewards_where_slime_would_not_call_them(opened):
    _, source = opened(custom_convert_samples_to_train_data_path="a.b")
    assert not source.config.leaves_placeholders_out
