"""An Inspect task through the gateway: its solver and its scorer, with durable, exact turns.

    pip install inspect-ai openai
    holdfast run examples/inspect_task.py --tasks examples/arithmetic.jsonl --samples 4

Holdfast starts this file as a program for each trajectory, and Inspect does the rest. After a kill,
Inspect begins again, and the gateway answers its calls from the journal.
"""

import json
import os
import sys
import urllib.request

import holdfast

solve = holdfast.BlackBoxRolloutProcessor([sys.executable, __file__])


def main() -> None:
    import inspect_ai
    from inspect_ai.dataset import Sample
    from inspect_ai.model import get_model
    from inspect_ai.scorer import match, value_to_float
    from inspect_ai.solver import generate

    with open(os.environ["HOLDFAST_TASK"]) as file:
        row = json.load(file)
    sample = Sample(input=row["messages"][0]["content"], target=str(row["ground_truth"]))
    task = inspect_ai.Task(dataset=[sample], solver=generate(), scorer=match(numeric=True))
    where = {"base_url": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]}
    model = get_model(f"openai-api/gateway/{os.environ['HOLDFAST_MODEL']}", **where)
    (log,) = inspect_ai.eval(task, model=model, display="none", log_dir="logs")
    if log.status != "success" or not log.samples:
        sys.exit(f"Inspect ended with {log.status}: {log.error}")
    complete(value_to_float()(log.samples[0].scores["match"].value))


def complete(reward: float) -> None:
    body = json.dumps({"reward": reward}).encode()
    headers = {"Content-Type": "application/json"}
    url = f"{os.environ['HOLDFAST_URL']}/complete"
    urllib.request.urlopen(urllib.request.Request(url, body, headers)).close()


if __name__ == "__main__":
    main()
