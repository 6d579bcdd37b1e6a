"""An environment of verifiers, in this process, through the gateway: its rubric is the reward.

    pip install 'verifiers<0.2'
    holdfast run examples/verifiers_environment.py --tasks examples/arithmetic.jsonl --samples 4

Any environment goes in the place of this one: `vf.load_environment("NAME")`.
"""

import verifiers as vf
from datasets import Dataset
from openai import AsyncOpenAI

import holdfast
from holdfast.gateway.server import Binding


def right(completion: vf.Messages, answer: str) -> float:
    return float(answer in completion[-1]["content"].split())


environment = vf.SingleTurnEnv(
    dataset=Dataset.from_list([{"question": "", "answer": ""}]), rubric=vf.Rubric(funcs=[right])
)


async def agent(binding: Binding, task: holdfast.Task) -> tuple[int, float]:
    prompt = [{"role": "user", "content": task.messages[0].text}]
    row = {"prompt": prompt, "answer": str(task.ground_truth), "example_id": 0}
    async with AsyncOpenAI(base_url=f"{binding.url}/v1", api_key=binding.key) as client:
        model = vf.OpenAIChatCompletionsClient(client)
        output = await environment.run_rollout(row, model, "any", {"max_tokens": 160})
    return 1, output["reward"]


solve = holdfast.BlackBoxRolloutProcessor(agent)
