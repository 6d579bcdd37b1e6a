"""eval-protocol's examples: every `@evaluation_test` of its source distribution, by file.

Left out are files that only hold one in a string (tests of its command line, of uploads), and its
training scripts, which decorate nothing.
"""

from typing import NamedTuple

ENGINE = "the engine"
JUDGE = "the engine, also as the judge at api.fireworks.ai"


class Example(NamedTuple):
    file: str
    """In the source distribution."""
    functions: tuple[str, ...]
    needs: str
    """What stands in for what it asks over a network."""
    beside: tuple[str, ...] = ()
    """Files of the distribution that it finds beside itself, or below the current folder."""
    rows: int | None = 2
    """How many rows of a data set are run; None: all."""
    verified: dict[str, str] = {}
    """Evaluations whose rows fail on purpose, and the test of the same file that looks at how."""


_GLM = """structured_output simple_completion json_preservation single_tool_call tool_json_validity
    tool_complex_arguments multiple_tool_calls tool_required_params_present tool_array_parameters
    tool_naming_fields tool_command_execution tool_parameter_types tools_with_reasoning
    output_consistency structured_output_with_reasoning multiple_tools_with_reasoning""".split()
_GLM_WHOLE = """structured_output simple_completion single_tool_call multiple_tool_calls
    tools_with_reasoning structured_output_with_reasoning multiple_tools_with_reasoning""".split()
_EFFORT = ("none_no_reasoning", "low_has_reasoning")
_BENCHMARKS, _QUICKSTART = "eval_protocol/benchmarks", "eval_protocol/quickstart"
_LIVEBENCH = ("cta", "tablejoin", "tablereformat")
_TAU = "the engine; an empty database of raw.githubusercontent.com"

EXAMPLES = [
    Example(
        f"{_BENCHMARKS}/test_aime25.py",
        ("test_aime25_pointwise",),
        "the engine; two data sets of huggingface.co",
    ),
    Example(
        f"{_BENCHMARKS}/test_gpqa.py",
        ("test_gpqa_pointwise",),
        "the engine; a CSV file of openaipublic.blob.core.windows.net",
    ),
    Example(
        f"{_BENCHMARKS}/test_livebench_data_analysis.py",
        tuple(f"test_livebench_{name}_pointwise" for name in _LIVEBENCH),
        "the engine; a module `datasets` whose load_dataset gives three rows",
        rows=None,
    ),
    Example(
        f"{_BENCHMARKS}/test_frozen_lake.py",
        ("test_frozen_lake_evaluation",),
        "the engine; the data set of its repository, written anew; its own gym is served",
        beside=("eval_protocol/mcp_servers/frozen_lake",),
    ),
    Example(
        f"{_BENCHMARKS}/test_tau_bench_airline.py",
        ("test_tau_bench_airline_evaluation",),
        _TAU,
        beside=(f"{_BENCHMARKS}/data/airline_dataset.jsonl",),
        rows=1,
    ),
    Example(
        f"{_BENCHMARKS}/test_tau_bench_retail.py",
        ("test_tau_bench_retail_evaluation",),
        _TAU,
        beside=(f"{_BENCHMARKS}/data/retail_dataset.jsonl",),
        rows=1,
    ),
    Example(
        f"{_BENCHMARKS}/test_glm_streaming_compliance.py",
        (
            *(f"test_streaming_{name}" for name in _GLM),
            *(f"test_non_streaming_{name}" for name in _GLM_WHOLE),
            *(f"test_reasoning_effort_{name}{kind}" for kind in ("", "_non_stream") for name in _EFFORT),
        ),
        ENGINE,
    ),
    Example(
        f"{_QUICKSTART}/llm_judge_braintrust.py",
        ("test_llm_judge",),
        f"{JUDGE}; api.braintrust.dev",
    ),
    Example(
        f"{_QUICKSTART}/aha_judge/llm_judge_braintrust.py",
        ("test_llm_judge",),
        f"{JUDGE}; api.braintrust.dev",
    ),
    Example(
        f"{_QUICKSTART}/aha_judge/llm_judge_langfuse.py",
        ("test_llm_judge",),
        f"{JUDGE}; cloud.langfuse.com",
    ),
    Example(
        f"{_QUICKSTART}/aha_judge/llm_judge_langsmith.py",
        ("test_llm_judge_langsmith",),
        f"{JUDGE}; api.smith.langchain.com",
    ),
    Example(
        f"{_QUICKSTART}/aha_judge/llm_judge_openai_responses.py",
        ("test_llm_judge_openai_responses",),
        f"{JUDGE}; the responses of api.openai.com",
    ),
    Example(
        f"{_QUICKSTART}/svg_agent/evaluator/test_svgagent.py",
        ("test_svg_generation_evaluation",),
        "its own remote server, which asks the engine through the gateway; its data set, written "
        "anew; its mark that skips it is taken away",
        beside=(f"{_QUICKSTART}/svg_agent/evaluator/utils.py",),
    ),
    Example(
        "tests/test_retry_mechanism.py",
        (
            *("test_retry_mechanism", "test_fail_fast_exceptions", "test_custom_giveup_function"),
            *("test_simple_giveup_function", "test_response_quality_error_retry"),
        ),
        "nothing: its processors ask nobody",
        verified={
            "test_fail_fast_exceptions": "test_fail_fast_verification",
            "test_custom_giveup_function": "test_custom_giveup_verification",
            "test_simple_giveup_function": "test_simple_giveup_verification",
        },
    ),
    Example(
        "tests/test_tau_bench_airline_smoke.py",
        ("test_tau_bench_airline_smoke_evaluation",),
        f"{_TAU}; the gym, the prompts and the data set are those of the package",
        beside=(f"{_BENCHMARKS}/data/airline_dataset.jsonl",),
        rows=1,
    ),
]
