"""The training processor: what it reads from completion params, and what it asks the engine."""

import asyncio

import pytest

from holdfast.records.message import Message, Role, assistant, system, user
from holdfast.records.sampling import Sampling
from holdfast.records.task import Task, as_tasks
from holdfast.rollout.context import Rollout
from holdfast.rollout.processors.processor import (
    RolloutConfig,
    SingleTurnRolloutProcessor,
    completion_params_of,
)
from holdfast.rollout.processors.training import TrainingRolloutProcessor, samples_for
from support.rollout.stage import TrajectoryUnderTest, text_of
from support.rollout.training import answered, with_params

# --- what is asked


def test_the_run_decides_where_nobody_else_does():
    oracle = answered(sampling=Sampling(max_tokens=7, temperature=0.25))
    (request,) = oracle.requests
    assert (request.sampling.max_tokens, request.sampling.temperature) == (7, 0.25)


def test_a_row_goes_before_the_processor_and_the_processor_before_the_run():
    processor = TrainingRolloutProcessor(
        {"model": "oracle", "max_tokens": 11, "temperature": 0.5, "stop": "\n"}
    )
    oracle = answered(
        processor,
        with_params(temperature=0.75, stop=None),
        sampling=Sampling(max_tokens=5, temperature=0.0, top_p=0.5),
    )
    (request,) = oracle.requests
    assert request.sampling == Sampling(max_tokens=11, temperature=0.75, top_p=0.5, stop=("\n",))


def test_all_that_engines_know_can_be_asked_for_by_a_row_and_is_told_again():
    body = {
        "top_k": 5,
        "min_p": 0.1,
        "presence_penalty": 0.5,
        "logit_bias": {"7": -100},
        "stop_token_ids": [3],
        "ignore_eos": True,
        "extra_body": {"repetition_penalty": 1.5, "cache_salt": "x"},
    }
    (request,) = answered(task=with_params(**body)).requests
    sampling = Sampling(
        top_k=5,
        min_p=0.1,
        presence_penalty=0.5,
        repetition_penalty=1.5,
        logit_bias=((7, -100.0),),
        stop_token_ids=(3,),
        ignore_eos=True,
        extra_body='{"cache_salt":"x"}',
    )
    assert request.sampling == sampling
    assert request.stop_token_ids == (3,), "the model's own ends are ignored"
    parameters = completion_params_of("m", sampling)
    assert parameters["extra_body"] == {"cache_salt": "x"}
    (request,) = answered(task=with_params(**{**parameters, "model": None})).requests
    assert request.sampling == sampling


def test_an_imported_row_brings_its_params_along():
    (task,) = as_tasks(
        [
            {
                "messages": [{"role": "user", "content": "do it"}],
                "tools": None,
                "input_metadata": {"row_id": "r", "completion_params": {"max_tokens": 3, "n": 1}},
            }
        ]
    )
    (request,) = answered(task=task).requests
    assert request.sampling.max_tokens == 3


def test_parameters_that_change_nothing_are_passed_over():
    params = {"model": "oracle", "stream": True, "logprobs": True, "timeout": 3, "user": "me"}
    assert len(answered(TrainingRolloutProcessor(params)).requests) == 1


def test_trailing_assistant_messages_are_dropped_before_sampling():
    task = Task(
        id="t",
        messages=(system("be brief"), user("q"), assistant("an old answer"), assistant("more")),
    )
    (request,) = answered(task=task).requests
    assert "an old answer" not in text_of(request.prompt)
    kept = TrainingRolloutProcessor(drop_trailing_assistant_messages=False)
    (request,) = answered(kept, task).requests
    assert text_of(request.prompt).count("assistant") == 3
    assert "an old answer" in text_of(request.prompt)


def test_assistant_messages_before_the_last_question_stay():
    task = Task(id="t", messages=(user("q"), assistant("a"), user("and?")))
    (request,) = answered(task=task).requests
    assert "a" in text_of(request.prompt).split("assistant\n")[1]


def test_the_tasks_tools_are_shown_to_the_model():
    schema = {"type": "function", "function": {"name": "add", "parameters": {}}}
    task = Task(id="t", messages=(user("q"),), tools=(schema,))
    (request,) = answered(task=task).requests
    assert '"name": "add"' in text_of(request.prompt)


# --- what is refused


@pytest.mark.parametrize(
    ("params", "why"),
    [
        ({}, "name no model"),
        ({"n": 2, "temperature": 1.0}, "name no model"),
        ({"model": None}, "name no model"),
        ({"model": ""}, "the model's name is empty"),
        ({"model": 3}, "Expected `str"),
        ({"model": "m", "n": 0}, "n must be 1 or more, not 0"),
        ({"model": "m", "n": -1}, "n must be 1 or more, not -1"),
        ({"model": "m", "n": 1.5}, "Expected `int"),
        ({"model": "m", "n": True}, "Expected `int"),
        ({"model": "m", "best_of": 4}, "unknown completion parameter 'best_of'; known: api_base"),
        ({"model": "m", "min_p": 2}, "min_p must be 0 to 1, not 2"),
        ({"model": "m", "extra_body": {"prompt": "x"}}, "extra_body.prompt: the request says"),
        ({"model": "m", "extra_body": {"model": "o"}}, "extra_body.model: give model itself"),
        ({"model": "m", "extra_body": {"n": 3}}, "extra_body.n: give n itself"),
        (
            {"model": "m", "temperature": 1.0, "extra_body": {"temperature": 0.0}},
            "temperature is 1.0, and in extra_body 0.0; give it once",
        ),
        ({"model": "m", "logit_bias": {"x": 1}}, "logit_bias is an object of token ids"),
        ({"model": "m", "max_tokens": 0}, "max_tokens must be 1 or more"),
        ({"model": "m", "temperature": "hot"}, "temperature is a number, not 'hot'"),
        ({"model": "m", "temperature": -1}, "temperature must be 0 or more"),
        ({"model": "m", "api_key": "sk-1"}, "give the processor api_keys="),
    ],
)
def test_params_that_make_no_sense_are_refused_at_construction(params, why):
    with pytest.raises(ValueError, match=why):
        TrainingRolloutProcessor(params)


@pytest.mark.parametrize(
    ("params", "why"),
    [
        ({"n": 0}, "task 't': n must be 1 or more, not 0"),
        ({"n": 3}, r"task 't' asks for n=3, but the run draws 1 samples .* \(--samples 3\)"),
        ({"best_of": 2}, "task 't': unknown completion parameter 'best_of'"),
        ({"min_p": -1}, "task 't': min_p must be 0 to 1, not -1"),
        ({"model": ""}, "task 't': the model's name is empty"),
        ({"model": "another"}, "not the run's .'oracle'.*give 'base_url'"),
    ],
)
def test_a_row_whose_params_make_no_sense_fails_before_anything_is_sampled(params, why):
    with pytest.raises(ValueError, match=why):
        answered(task=with_params(**params))


def test_params_of_a_row_that_are_no_object_are_refused():
    task = Task(id="t", messages=(user("q"),), metadata={"completion_params": [1]})
    with pytest.raises(ValueError, match="task 't': completion_params are not an object"):
        answered(task=task)


def test_a_run_that_names_no_model_is_refused():
    with pytest.raises(ValueError, match="the model's name is empty"):
        answered(model="")


async def test_one_bad_row_of_a_call_is_one_failed_task():
    subject = TrajectoryUnderTest()
    session = await subject.session()

    def opened(task):
        t = Rollout(session)
        t.task = task
        return t

    config = RolloutConfig("oracle", Sampling(), opened)
    bad, good = TrainingRolloutProcessor()([with_params(n=0), subject.task], config)
    bad, good = await asyncio.gather(bad, good, return_exceptions=True)
    assert isinstance(bad, ValueError)
    assert good is None
    assert len(subject.oracle.requests) == 1


@pytest.mark.parametrize("messages", [(), (assistant("nothing asked"),)])
def test_a_task_without_a_question_is_refused(messages):
    with pytest.raises(ValueError, match="task 't' has no message to answer"):
        answered(task=Task(id="t", messages=messages))


# --- n


def test_n_is_the_number_of_samples_of_the_run():
    assert TrainingRolloutProcessor({"model": "m", "n": 4}).samples == 4
    assert TrainingRolloutProcessor({"model": "m"}).samples is None
    assert TrainingRolloutProcessor().samples is None


def test_samples_that_are_given_go_before_those_of_the_processor():
    four = TrainingRolloutProcessor({"model": "m", "n": 4})
    assert samples_for(four, None) == 4
    assert samples_for(four, 2) == 2
    assert samples_for(TrainingRolloutProcessor(), None) == 1
    assert samples_for(SingleTurnRolloutProcessor(), None) == 1


# --- the config


def test_a_config_says_what_the_run_was_started_with():
    config = RolloutConfig("m", Sampling(max_tokens=9, stop=("x",)), lambda task: task)
    assert config.completion_params == {
        "model": "m",
        "temperature": 1.0,
        "max_tokens": 9,
        "top_p": 1.0,
        "stop": ["x"],
    }
    assert RolloutConfig("m", Sampling(), lambda task: task, {}).completion_params == {}


async def test_the_reply_is_the_last_assistant_message():
    subject = TrajectoryUnderTest(task=Task(id="t", messages=(user("q"), assistant("old"))))
    session = await subject.session()
    config = RolloutConfig("oracle", Sampling(), lambda task: Rollout(session))
    (job,) = TrainingRolloutProcessor()([subject.task], config)
    await job
    from holdfast.records.view import TrajectoryView

    view = TrajectoryView(session.lease.key, subject.task, await subject.history())
    assert view.messages == [user("q"), Message(Role.ASSISTANT, "re run/t/0/0")]
    assert view.reply == "re run/t/0/0"
