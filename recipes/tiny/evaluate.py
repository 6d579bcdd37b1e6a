"""How often the tiny policy is right: `python -m recipes.tiny.evaluate`, from the root.

The policy plays held-out tasks with the real calculator, at temperature 1 and 0. A call that is
not well-formed JSON for the calculator ends the conversation, as does the last turn. Nothing of
Holdfast's engine takes part: this is transformers alone.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from recipes.tiny.chat import long_preamble
from recipes.tiny.demonstrations import Conversation, Message, call, response
from recipes.tiny.tasks import CALCULATOR, is_right, tasks
from recipes.tiny.tokenizer import render
from recipes.tiny.train import FOLDER
from transformers import LlamaForCausalLM
from transformers import PreTrainedTokenizerFast as Tokenizer

MAX_TURNS = 6
MAX_TOKENS = 80
BATCH = 100
SEED = 7


class Episode:
    """One task on its way: the messages so far, and what happened."""

    def __init__(self, task: dict[str, str], *, preamble: bool):
        self.task = task
        self.messages: list[Message] = [{"role": "user", "content": task["prompt"]}]
        self.tools = [CALCULATOR]
        if preamble:
            self.messages.insert(0, {"role": "system", "content": long_preamble([CALCULATOR])})
            self.tools = []
        self.turns = self.calls = self.malformed = 0
        self.done = False

    def take(self, completion: str) -> None:
        """Adds what the model said and, after a call, what the calculator says."""
        self.turns += 1
        if "<tool_call>" not in completion:
            self.messages.append({"role": "assistant", "content": completion})
            self.done = True
            return
        self.calls += 1
        expression = expression_of(completion)
        if expression is None:
            self.malformed += 1
            self.done = True
            return
        self.messages.append(call("calculator", {"expression": expression}))
        self.messages.append({"role": "tool", "content": response(expression)})
        self.done = self.turns == MAX_TURNS

    @property
    def right(self) -> bool:
        last = self.messages[-1]
        return last["role"] == "assistant" and is_right(last["content"], self.task["ground_truth"])


class Report(NamedTuple):
    tasks: int
    right: float
    well_formed: float
    turns: float
    without_call: float


def expression_of(completion: str) -> str | None:
    """The expression of a well-formed call of the calculator, alone in the completion."""
    inner = completion.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")
    try:
        parsed = json.loads(inner)
        expression = parsed["arguments"]["expression"]
    except (ValueError, KeyError, TypeError):
        return None
    well_formed = parsed["name"] == "calculator" and len(inner) + 25 == len(completion)
    return expression if well_formed and isinstance(expression, str) else None


def evaluate(
    model: LlamaForCausalLM,
    tokenizer: Tokenizer,
    *,
    count: int,
    temperature: float,
    seed: int = SEED,
    preamble: bool = False,
) -> Report:
    """Plays `count` held-out tasks; the same seed gives the same report on the same machine."""
    torch.manual_seed(seed)
    episodes = [Episode(task, preamble=preamble) for task in tasks(seed, count)]
    for first in range(0, count, BATCH):
        playing = episodes[first : first + BATCH]
        while playing:
            for episode, said in zip(
                playing, _say(model, tokenizer, playing, temperature=temperature), strict=True
            ):
                episode.take(said)
            playing = [episode for episode in playing if not episode.done]
    return report(episodes)


def report(episodes: Sequence[Episode]) -> Report:
    count = len(episodes)
    calls = sum(episode.calls for episode in episodes)
    return Report(
        tasks=count,
        right=sum(episode.right for episode in episodes) / count,
        well_formed=1 - sum(episode.malformed for episode in episodes) / max(1, calls),
        turns=sum(episode.turns for episode in episodes) / count,
        without_call=sum(episode.calls == 0 for episode in episodes) / count,
    )


def _say(
    model: LlamaForCausalLM,
    tokenizer: Tokenizer,
    episodes: Sequence[Episode],
    *,
    temperature: float,
) -> list[str]:
    """The next assistant message of each episode, without its end of turn."""
    prompts = [
        render(tokenizer, Conversation(episode.messages, episode.tools), prompt=True)
        for episode in episodes
    ]
    inputs = tokenizer(
        prompts, padding=True, padding_side="left", return_tensors="pt", add_special_tokens=False
    ).to(model.device)
    sampling = {"do_sample": True, "temperature": temperature}
    greedy = {"do_sample": False, "temperature": None}
    with torch.inference_mode():
        output = model.generate(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            max_new_tokens=MAX_TOKENS,
            **(sampling if temperature else greedy),
        )
    said = tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :])
    return [text.split("<|im_end|>")[0].split("<|endoftext|>")[0] for text in said]


def load(folder: Path) -> tuple[LlamaForCausalLM, Tokenizer]:
    return LlamaForCausalLM.from_pretrained(folder), Tokenizer.from_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=FOLDER)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--long-preamble", action="store_true", help="tools listed as Qwen3 does")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model, tokenizer = load(arguments.model)
    for temperature in (1.0, 0.0):
        found = evaluate(
            model,
            tokenizer,
            count=arguments.count,
            temperature=temperature,
            seed=arguments.seed,
            preamble=arguments.long_preamble,
        )
        print(  # noqa: T201
            f"temperature {temperature:.0f}: right {found.right:.1%} of {found.tasks} tasks, "
            f"well-formed calls {found.well_formed:.1%}, turns {found.turns:.2f}, "
            f"answers without a call {found.without_call:.1%}"
        )


if __name__ == "__main__":
    main()
