"""An evaluation of Inspect's with one sample, the task; with a reasoning model, which it probes."""

from adding import read_task
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.solver import generate

sample = Sample(input=read_task()[0]["content"])
(log,) = eval(
    Task(dataset=[sample], solver=generate()), model="openai/gpt-5", display="none", log_dir="logs"
)
assert log.status == "success", log.error
