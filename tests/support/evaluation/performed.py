"""A rollout that adds, performed."""

import asyncio

from holdfast.evaluation.data.dataset import datasets_of
from holdfast.evaluation.rows.convert import task_of
from holdfast.evaluation.rows.row import EvaluationRow
from holdfast.records.task import tasks_digest
from holdfast.rollout.tools.tool import tool
from support.engine.local_run import LocalRun
from support.rollout.stage import Oracle, text_of


def identified(*records: object) -> list[EvaluationRow]:
    (dataset,) = datasets_of(input_dataset=list(records))
    return asyncio.run(dataset.rows())


@tool
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


async def adding(t) -> float:
    t.add(*t.task.messages)
    reply = await t.generate(tools=[add])
    await t.tools(reply.tool_calls, add)
    await t.generate(tools=[add])
    return 0.5


CALL = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 2}}</tool_call>'


def answer(request) -> str:
    return "It is 4." if CALL in text_of(request.prompt) else CALL


def performed(rollout, *records: object, policy=None, scorer=None, **options) -> LocalRun:
    local = LocalRun(policy=policy or Oracle(answer))
    rows = identified(*(records or ({"prompt": "2+2?", "id": "a", "level": 3},)))
    local.tasks = [task_of(row) for row in rows]
    local.spec = type(local.spec)(
        **{name: getattr(local.spec, name) for name in local.spec.__struct_fields__}
        | {"tasks": tasks_digest(local.tasks)}
    )
    local.run(rollout, scorer, **options)
    return local
