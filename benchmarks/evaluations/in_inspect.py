"""The evaluation in Inspect, with its own environment's Python."""

import sys

import traffic
from inspect_ai import Task
from inspect_ai import eval as evaluate
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import GenerateConfig, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import basic_agent, generate
from inspect_ai.tool import tool


@tool
def add():
    async def execute(a: int, b: int) -> int:
        """Adds two numbers.

        Args:
            a: The first.
            b: The second.
        """
        return a + b

    return execute


def main() -> None:
    samples = [
        Sample(input=row["messages"][0]["content"], target=traffic.EXPECTED)
        for row in traffic.rows()
    ]
    single = traffic.SHAPE == "single"
    agent = basic_agent(tools=[add()], message_limit=3 * traffic.TURNS, submit_name="submit")
    task = Task(
        dataset=MemoryDataset(samples), solver=generate() if single else agent, scorer=includes()
    )
    config = GenerateConfig(
        max_tokens=traffic.TOKENS, temperature=1.0, logprobs=True,
        max_connections=traffic.CONCURRENCY, extra_body={"return_token_ids": True},
    )  # fmt: skip
    model = get_model(
        "openai-api/fake/fake", base_url=f"{traffic.URL}/v1", api_key="none", config=config
    )
    (log,) = evaluate(task, model=model, display="none", max_samples=traffic.CONCURRENCY)
    if log.status != "success":
        sys.exit(f"Inspect ended with {log.status}: {log.error}")


main()
