"""Rows of trajectories with several turns: flat token lists, with masks and turn boundaries."""

import json

import pytest
from msgspec import structs

from holdfast.engine.export.export import What
from holdfast.policy.policy import Completion, Request
from holdfast.policy.rendering.messages_only import MessagesOnly
from holdfast.records.errors import EngineUnavailable, NotTrainable
from holdfast.records.group import GroupPolicy
from holdfast.records.message import Message, Role, assistant, user
from holdfast.records.usage import Usage
from holdfast.rollout.processors.training import TrainingRolloutProcessor
from holdfast.rollout.replay.speaker import Speaker
from holdfast.rollout.tools.tool import tool
from support.engine.local_run import LocalRun
from support.rollout.stage import Oracle, completion

CALL = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'


@tool(contract="idempotent")
def add(a: int, b: int) -> int:
    return a + b


async def with_a_tool(t):
    t.add(*t.task.messages)
    while (reply := await t.generate(tools=[add])).tool_calls:
        for call in reply.tool_calls:
            await t.tool(call, add)


def calling(request: Request) -> str:
    """The first turn calls the tool, the second answers."""
    return f"let me see {CALL}" if request.id.endswith("/0") else "it is 3"


def rows(local: LocalRun, **options: object) -> list[dict]:
    return json.loads(json.dumps(local.rows(What.ROWS, **options)))


def extra(row: dict) -> dict:
    return row["execution_metadata"]["extra"]


def test_a_trajectory_with_turns_is_one_row_with_its_tokens_in_a_line():
    local = LocalRun(samples=2, policy=Oracle(calling))
    local.run(with_a_tool, lambda view: float(view.key.sample))
    first, second = rows(local)
    samples = local.rows()
    assert [row["execution_metadata"]["rollout_id"] for row in (first, second)] == [
        "run/a/0",
        "run/a/1",
    ]
    for row, sample in zip((first, second), samples, strict=True):
        fields = extra(row)
        (ids,), (logprobs,), (mask,) = (
            fields["completion_ids"],
            fields["inference_logprobs"],
            fields["loss_mask"],
        )
        assert fields["prompt_ids"] + ids == sample["token_ids"]
        assert [0] * len(fields["prompt_ids"]) + mask == sample["loss_mask"]
        assert len(ids) == len(mask) == len(logprobs)
        (start, end), (again, last) = fields["turn_boundaries"]
        assert (start, last) == (0, len(ids))
        assert ids[start:end] == [*f"let me see {CALL}".encode(), 257]
        assert ids[again:last] == [*b"it is 3", 257]
        assert mask == [1] * end + [0] * (again - end) + [1] * (last - again)
        assert set(logprobs[end:again]) == {0.0}
        assert logprobs[again] == -1 / 256
        (spans,) = fields["version_spans"]
        assert spans == [["v1", start, end, 0], ["v1", again, last, 0]]
        assert fields["finish_reasons"] == ["stop"]
        assert fields["completions_text"] == [f"let me see{CALL}\nit is 3"], "as it was parsed"
        assert "token_turn_traces" not in fields
        assert row["execution_metadata"]["usage"] == {
            "prompt_tokens": len(sample["token_ids"]) - sum(mask),
            "completion_tokens": sum(mask),
            "total_tokens": len(sample["token_ids"]),
        }
        assert row["execution_metadata"]["tool_call_count"] == 1
    assert (extra(second)["samples"], extra(second)["rewards"]) == ([1], [1.0])
    assert second["evaluation_result"]["score"] == 1.0


def test_messages_and_tool_calls_are_in_the_shape_of_chat_apis():
    local = LocalRun(policy=Oracle(calling))
    local.run(with_a_tool)
    (row,) = rows(local)
    request, called, message, answer = row["messages"]
    assert request == {"role": "user", "content": "do a"}
    (call,) = called["tool_calls"]
    assert call["type"] == "function"
    assert call["function"]["name"] == "add"
    assert json.loads(call["function"]["arguments"]) == {"a": 1, "b": 2}
    assert message == {
        "role": "tool",
        "content": "3",
        "name": "add",
        "tool_call_id": call["id"],
    }
    assert answer == {"role": "assistant", "content": "it is 3"}


def test_turn_traces_are_each_turn_as_the_engine_saw_it():
    local = LocalRun(policy=Oracle(calling))
    local.run(with_a_tool)
    (row,) = rows(local, turn_traces=True)
    first, second = extra(row)["token_turn_traces"]
    sent = [request.prompt.tolist() for request in local.policy.requests]
    assert [first["prompt_ids"], second["prompt_ids"]] == sent
    assert (first["step_index"], second["step_index"]) == (0, 1)
    assert second["completion_ids"] == [*b"it is 3", 257]
    assert len(second["completion_logprobs"]) == len(second["completion_ids"])
    assert second["prompt_ids"][: len(first["prompt_ids"] + first["completion_ids"])] == (
        first["prompt_ids"] + first["completion_ids"]
    )


def test_with_turn_traces_every_row_is_one_trajectory():
    local = LocalRun(samples=2)
    local.run(TrainingRolloutProcessor())
    assert len(rows(local)) == 1
    two = rows(local, turn_traces=True)
    assert [extra(row)["samples"] for row in two] == [[0], [1]]
    assert all(len(extra(row)["token_turn_traces"]) == 1 for row in two)


def test_a_row_grows_with_its_tokens_and_not_with_the_square_of_its_turns():
    async def talk(t):
        for turn in range(t.task.metadata["turns"]):
            t.add(f"turn {turn:04}")
            await t.generate()

    def size(turns: int) -> int:
        local = LocalRun(policy=Oracle(lambda request: "a steady answer"))
        local.tasks = [type(local.tasks[0])(id="a", metadata={"turns": turns})]
        local.run(talk)
        return len(json.dumps(rows(local)))

    assert size(64) < 4.5 * size(16)


def test_one_sample_with_turns_makes_rows_of_all_samples_of_its_task():
    def answer(request):
        return calling(request) if "/1/" in request.id else "at once"

    local = LocalRun("a", "b", samples=3, policy=Oracle(answer))
    local.run(with_a_tool)
    tables = rows(local)
    assert [row["execution_metadata"]["rollout_id"] for row in tables] == [
        f"run/{task}/{sample}" for task in "ab" for sample in range(3)
    ]
    assert [len(extra(row)["turn_boundaries"]) for row in tables] == [1, 2, 1] * 2


async def greeted_by_number(t):
    t.add(f"you are number {t.key.sample}")
    await t.generate()


async def only_the_first_has_tools(t):
    t.add("same words")
    await t.generate(tools=[] if t.key.sample else [add])


@pytest.mark.parametrize("rollout", [greeted_by_number, only_the_first_has_tools])
def test_samples_of_different_prompts_are_rows_of_their_own(rollout):
    local = LocalRun(samples=2)
    local.run(rollout)
    assert [extra(row)["samples"] for row in rows(local)] == [[0], [1]]


def test_a_failed_sibling_of_trajectories_with_turns_is_a_row_with_its_error():
    def answer(request):
        return EngineUnavailable("503") if "/1/" in request.id else calling(request)

    local = LocalRun(samples=2, policy=Oracle(answer), group=GroupPolicy(refill=0))
    local.run(with_a_tool, lambda view: 1.0, max_retry=0)
    fine, broken = rows(local)
    assert fine["rollout_status"]["code"] == 100
    assert broken["rollout_status"]["code"] == 13
    assert broken["execution_metadata"]["rollout_id"] == "run/a/1"
    assert extra(broken) == {
        "failed_samples": [
            {"sample": 1, "cause": "infrastructure", "message": "EngineUnavailable: #"}
        ]
    }
    assert "evaluation_result" not in broken


# --- forks


def test_a_rewritten_history_gives_a_row_for_each_branch():
    async def forgets(t):
        t.add("one")
        await t.generate()
        t.messages[:] = [user("one"), assistant("something else"), user("two")]
        await t.generate()

    local = LocalRun(policy=Oracle(lambda request: f"at {request.id[-1]}"))
    local.run(forgets)
    before, after = rows(local)
    samples = local.rows()
    assert [extra(row)["branch"] for row in (before, after)] == [0, 1]
    assert after["execution_metadata"]["rollout_id"] == "run/a/0#1"
    assert [message["content"] for message in before["messages"]] == ["one", "at 0"]
    assert [message["content"] for message in after["messages"]] == [
        *("one", "something else", "two", "at 1")
    ]
    for row, sample in zip((before, after), samples, strict=True):
        fields = extra(row)
        assert fields["prompt_ids"] + fields["completion_ids"][0] == sample["token_ids"]
        assert len(fields["turn_boundaries"]) == 1
        assert fields["loss_mask"][0] == sample["loss_mask"][len(fields["prompt_ids"]) :]


def test_branches_share_their_beginning_and_train_it_once():
    async def splits(t):
        t.add("start")
        await t.generate()

        async def go(child):
            child.add("go on")
            await child.generate()

        await t.branch(go, go)

    local = LocalRun(policy=Oracle(lambda request: f"at {request.id}"))
    local.run(splits)
    left, right = rows(local)
    assert extra(left)["prompt_ids"] == extra(right)["prompt_ids"]
    assert extra(left)["turn_boundaries"][0] == extra(right)["turn_boundaries"][0]
    start, end = extra(left)["turn_boundaries"][0]
    assert set(extra(left)["loss_mask"][0][start:end]) == {1}
    assert set(extra(right)["loss_mask"][0][start:end]) == {0}
    assert left["messages"][-1]["content"] == "at run/a/0/1.0.0"
    assert right["messages"][-1]["content"] == "at run/a/0/1.1.0"
    spans = extra(right)["version_spans"][0]
    assert [span[1:3] for span in spans] == extra(right)["turn_boundaries"]


def test_what_another_voice_said_is_there_but_not_in_the_mask():
    other = Oracle(lambda request: "and then?")

    async def interviewed(t):
        t.add("start")
        await t.generate(speaker=Speaker(other, t.speaker.renderer, trained=False))

    local = LocalRun()
    local.run(interviewed)
    (row,) = rows(local)
    assert extra(row)["turn_boundaries"] == [[0, 10]]
    assert set(extra(row)["loss_mask"][0]) == {0}


# --- engines without tokens


class Chat(Oracle):
    """An engine that takes messages and gives messages."""

    async def sample(self, request: Request) -> Completion:
        self.requests.append(request)
        message = Message(Role.ASSISTANT, f"said {request.messages[-1].text}", reasoning="hm")
        whole = completion("")
        return Completion(b"", b"", "stop", (), whole.model, 1, 0.0, message=message)


@pytest.mark.parametrize("turns", [1, 2])
def test_a_run_through_chat_gives_rows_without_token_fields(turns, monkeypatch):
    monkeypatch.setattr("support.engine.local_run.BeginsEmpty", MessagesOnly)

    async def talk(t):
        for turn in range(turns):
            t.add(f"turn {turn}")
            await t.generate()

    local = LocalRun(samples=2, policy=Chat())
    local.run(talk, lambda view: 1.0)
    with pytest.raises(NotTrainable):
        local.rows()
    tables = rows(local)
    assert len(tables) == (1 if turns == 1 else 2)
    row = tables[0]
    assert row["messages"][-1] == {
        "role": "assistant",
        "content": f"said turn {turns - 1}",
        "reasoning_content": "hm",
    }
    assert row["evaluation_result"]["score"] == 1.0
    assert "usage" not in row["execution_metadata"]
    assert not extra(row).keys() & {
        *("prompt_ids", "completion_ids", "inference_logprobs", "version_spans", "loss_mask"),
        *("turn_boundaries", "token_turn_traces"),
    }
    assert extra(row)["completions_text"][0].endswith(f"said turn {turns - 1}")


def test_a_row_of_several_replies_without_tokens_has_the_sum_of_what_they_used(monkeypatch):
    monkeypatch.setattr("support.engine.local_run.BeginsEmpty", MessagesOnly)

    class Counting(Chat):
        async def sample(self, request: Request) -> Completion:
            return structs.replace(await super().sample(request), usage=Usage(5, 3))

    async def ask(t):
        t.add("question")
        await t.generate()

    local = LocalRun(samples=4, policy=Counting())
    local.run(ask)
    (row,) = rows(local)
    assert row["execution_metadata"]["usage"] == {
        "prompt_tokens": 20,
        "completion_tokens": 12,
        "total_tokens": 32,
    }


def test_a_row_without_tokens_says_nothing_of_a_conversation_beside_its_own(monkeypatch):
    monkeypatch.setattr("support.engine.local_run.BeginsEmpty", MessagesOnly)

    class Counting(Chat):
        async def sample(self, request: Request) -> Completion:
            return structs.replace(await super().sample(request), usage=Usage(5, 3))

    async def talk_to_a_simulated_user(t):
        simulated_user = t.beside()
        simulated_user.add("begin")
        opening = await simulated_user.generate(temperature=0.0)
        t.add(opening.text)
        reply = await t.generate(temperature=0.8)
        simulated_user.add(reply.text)
        await simulated_user.generate(temperature=0.0)

    local = LocalRun(policy=Counting())
    local.run(talk_to_a_simulated_user)
    (row,) = rows(local)
    assert row["input_metadata"]["completion_params"]["temperature"] == 0.8
    assert row["execution_metadata"]["usage"]["total_tokens"] == 8
    assert extra(row)["completions_text"] == ["said said begin"]


def test_a_rollout_that_samples_nothing_is_a_row_all_the_same():
    async def says_nothing(t):
        return 0.5

    local = LocalRun()
    local.run(says_nothing)
    (row,) = rows(local)
    assert row["evaluation_result"]["score"] == 0.5
    assert "completion_ids" not in extra(row)
    assert "finish_reason" not in row["execution_metadata"]
