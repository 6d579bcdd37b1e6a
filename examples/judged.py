"""A judge: another model scores each answer by two criteria, and says why.

export OPENAI_API_KEY=…          # or JUDGE=http://127.0.0.1:8000, the address of an engine
holdfast run examples/judged.py --tasks examples/judged.jsonl --samples 4 --policy URL
holdfast show judged-1 knot      # the scores, with their reasons
"""

import os

import holdfast

score = holdfast.Judge(
    {
        "right": "Would a sailor agree with the answer? 10: entirely; 0: not at all.",
        "short": "10: not a word too many; 0: it rambles.",
    },
    policy=os.environ.get("JUDGE", "openai/gpt-4o-mini"),
)


async def answer(t: holdfast.Rollout) -> None:
    t.add(holdfast.system("Answer in one sentence."), *t.task.messages)
    await t.generate(max_tokens=200)
