"""An evaluation of Inspect's with one sample, the task; with a reasoning model, which it probes."""

import inspect_ai
from adding import read_task
from inspect_ai.dataset import Sample
from inspect_ai.solver import generate

sample = Sample(input=read_task()[0]["content"])
task = inspect_ai.Task(dataset=[sample], solver=generate())
(log,) = inspect_ai.eval(task, model="openai/gpt-5", display="none", log_dir="logs")
assert log.status == "success", log.error
