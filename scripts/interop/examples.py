"""eval-protocol's examples: every file of its source distribution that has an `@evaluation_test`.

Left out are files that only hold one in a string (tests of its command line and of uploads).
"""

from typing import NamedTuple

BENCHMARKS, QUICKSTART = "eval_protocol/benchmarks", "eval_protocol/quickstart"
JUDGE = "the engine, also as the judge at api.fireworks.ai"
TAU = "the engine; an empty database of raw.githubusercontent.com; its own gym is served"
ONE_GYM = 1
"""Runs of a gym. eval-protocol 0.3.33 starts a gym for each run, all on the same port, and stops
none before the last run has ended: the second run finds the port in use, and fails."""


class Example(NamedTuple):
    file: str
    """In the source distribution."""
    evaluations: int
    """How many it has."""
    needs: str
    """What stands in for what it asks over a network."""
    beside: tuple[str, ...] = ()
    """Files of the distribution that it finds beside itself, or below the current folder."""
    rows: int | None = 2
    """How many rows of a data set are run; None: all."""
    runs: int | None = None
    """How often each row is run; None: as often as the example says."""
    fails: tuple[str, ...] = ()
    """Evaluations whose rows are meant to fail for good. (How, is looked at by unit tests.)"""
    wrong: str = ""
    """Why it does not run with eval-protocol itself, either."""


EXAMPLES = [
    Example(f"{BENCHMARKS}/test_aime25.py", 1, "the engine; two data sets of huggingface.co"),
    Example(
        f"{BENCHMARKS}/test_gpqa.py",
        1,
        "the engine; a CSV file of openaipublic.blob.core.windows.net",
    ),
    Example(
        f"{BENCHMARKS}/test_livebench_data_analysis.py",
        3,
        "the engine; a module `datasets` whose load_dataset gives three rows",
        rows=None,
    ),
    Example(
        f"{BENCHMARKS}/test_frozen_lake.py",
        1,
        "the engine; the data set of its repository, written anew; its own gym is served",
        beside=("eval_protocol/mcp_servers/frozen_lake",),
    ),
    Example(
        f"{BENCHMARKS}/test_tau_bench_airline.py",
        1,
        TAU,
        beside=(f"{BENCHMARKS}/data/airline_dataset.jsonl",),
        rows=1,
        runs=ONE_GYM,
    ),
    Example(
        f"{BENCHMARKS}/test_tau_bench_retail.py",
        1,
        TAU,
        beside=(f"{BENCHMARKS}/data/retail_dataset.jsonl",),
        rows=1,
        runs=ONE_GYM,
    ),
    Example(f"{BENCHMARKS}/test_glm_streaming_compliance.py", 27, "the engine"),
    Example(f"{QUICKSTART}/llm_judge_braintrust.py", 1, f"{JUDGE}; api.braintrust.dev"),
    Example(f"{QUICKSTART}/aha_judge/llm_judge_braintrust.py", 1, f"{JUDGE}; api.braintrust.dev"),
    Example(f"{QUICKSTART}/aha_judge/llm_judge_langfuse.py", 1, f"{JUDGE}; cloud.langfuse.com"),
    Example(
        f"{QUICKSTART}/aha_judge/llm_judge_langsmith.py",
        1,
        f"{JUDGE}; api.smith.langchain.com",
        wrong="it gives preprocess_fn beside data_loaders, which eval-protocol refuses, too",
    ),
    Example(
        f"{QUICKSTART}/aha_judge/llm_judge_openai_responses.py",
        1,
        f"{JUDGE}; the responses of api.openai.com",
    ),
    Example(
        f"{QUICKSTART}/svg_agent/evaluator/test_svgagent.py",
        1,
        "its own remote server, which asks the engine through the gateway; its data set, written "
        "anew; its mark that skips it is taken away; there is no browser to draw with, so that its "
        "function gives a score that is not valid",
        beside=(f"{QUICKSTART}/svg_agent/evaluator/utils.py",),
    ),
    Example(
        "tests/test_retry_mechanism.py",
        5,
        "nothing: its processors ask nobody",
        rows=None,
        fails=(
            *("test_fail_fast_exceptions", "test_custom_giveup_function"),
            "test_simple_giveup_function",
        ),
    ),
    Example(
        "tests/test_tau_bench_airline_smoke.py",
        1,
        f"{TAU}, with the prompts and the data set of the package",
        beside=(f"{BENCHMARKS}/data/airline_dataset.jsonl",),
        rows=1,
    ),
]
