"""The policy in the package: its size, its tokenizer, its template, its recipe and its accuracy."""

import json
import sys
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.paths import ROOT

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
sys.path.insert(0, str(ROOT))

from recipes.tiny.chat import long_preamble  # noqa: E402
from recipes.tiny.demonstrations import conversations, steps  # noqa: E402
from recipes.tiny.evaluate import evaluate, expression_of, load  # noqa: E402
from recipes.tiny.tasks import (  # noqa: E402
    CALCULATOR,
    CalculatorError,
    Operation,
    calculator,
    is_held_out,
    is_right,
    tasks,
    text,
    value,
)
from recipes.tiny.tokenizer import CONTROL, TAGS, train_tokenizer  # noqa: E402
from recipes.tiny.train import FOLDER, IGNORED, Settings, batches, save, sha256, train  # noqa: E402
from safetensors import safe_open  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402

SMALL = Settings(steps=3, batch=2, layers=1, hidden=32, intermediate=32, threads=1)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(autouse=True)
def torch_as_it_was():
    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(strict)


def render(tokenizer, messages, **options):
    return tokenizer.apply_chat_template(messages, tokenize=False, **options)


def ids(tokenizer, messages, **options):
    return tokenizer.encode(render(tokenizer, messages, **options), add_special_tokens=False)


def test_the_folder_is_small_and_the_weights_are_plain_float32():
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) <= 8_000_000
    with safe_open(FOLDER / "model.safetensors", "pt") as weights:
        tensors = [weights.get_tensor(name) for name in weights.keys()]  # noqa: SIM118
    assert 1_000_000 <= sum(tensor.numel() for tensor in tensors) <= 5_000_000
    assert {tensor.dtype for tensor in tensors} == {torch.float32}
    assert all(bool(tensor.isfinite().all()) for tensor in tensors)


def test_engines_find_what_they_need_in_the_configuration():
    config = json.loads((FOLDER / "config.json").read_text())
    assert config["head_dim"] >= 32
    assert config["tie_word_embeddings"] is False
    assert config["max_position_embeddings"] >= 2048
    generation = json.loads((FOLDER / "generation_config.json").read_text())
    assert config["eos_token_id"] in generation["eos_token_id"]


def test_the_model_card_names_these_weights():
    card = (ROOT / "recipes" / "tiny" / "README.md").read_text()
    assert sha256(FOLDER) in card


@settings(deadline=None)
@given(
    st.text() | st.text(st.sampled_from('\n\t 09ab<|>_{}"é𝄞')) | st.sampled_from([*CONTROL, *TAGS])
)
def test_any_text_comes_back_unchanged(tokenizer, written):
    tokens = tokenizer.encode(written, add_special_tokens=False)
    assert tokenizer.decode(tokens, skip_special_tokens=False) == written


@settings(deadline=None)
@given(st.text(), st.text())
def test_what_follows_a_newline_changes_no_token_before_it(tokenizer, before, after):
    prefix = tokenizer.encode(before + "\n", add_special_tokens=False)
    whole = tokenizer.encode(before + "\n" + after, add_special_tokens=False)
    assert whole[: len(prefix)] == prefix


def test_digits_and_control_tokens_are_one_token_each(tokenizer):
    assert len(tokenizer.encode("2048", add_special_tokens=False)) == 4
    for token in (*CONTROL, *TAGS):
        assert len(tokenizer.encode(token, add_special_tokens=False)) == 1
    assert set(tokenizer.all_special_tokens) <= set(CONTROL)


def test_a_longer_conversation_begins_with_the_tokens_of_a_shorter_one(tokenizer):
    for conversation in islice(conversations(99), 150):
        messages, tools = conversation.messages, conversation.tools or None
        whole = ids(tokenizer, messages, tools=tools)
        for length in range(1, len(messages)):
            shorter = ids(tokenizer, messages[:length], tools=tools)
            assert whole[: len(shorter)] == shorter
            if messages[length]["role"] == "assistant":
                options = {"tools": tools, "add_generation_prompt": True}
                prompt = ids(tokenizer, messages[:length], **options)
                assert whole[: len(prompt)] == prompt


content = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
message = st.one_of(
    st.builds(lambda text: {"role": "user", "content": text}, content),
    st.builds(lambda text: {"role": "tool", "content": text}, content),
    st.builds(lambda text: {"role": "assistant", "content": text}, content),
    st.builds(
        lambda text, arguments: {
            "role": "assistant",
            "content": text,
            "tool_calls": [{"function": {"name": "f", "arguments": arguments}}] * 2,
        },
        content,
        st.dictionaries(content, content, max_size=2) | content,
    ),
)


@settings(deadline=None)
@given(st.lists(message, min_size=2, max_size=6))
def test_the_template_only_ever_appends(tokenizer, messages):
    whole = ids(tokenizer, messages, tools=[CALCULATOR])
    for length in range(1, len(messages)):
        shorter = ids(tokenizer, messages[:length], tools=[CALCULATOR])
        assert whole[: len(shorter)] == shorter


def test_tools_and_calls_are_rendered_as_the_model_sees_and_emits_them(tokenizer):
    emitted = (
        '<tool_call>\n{"name": "calculator", "arguments": {"expression":  "1+2"}}\n</tool_call>'
    )
    function = {"name": "calculator", "arguments": '{"expression":  "1+2"}'}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": " What is 1+2?\n"},
        {"role": "assistant", "content": None, "tool_calls": [{"function": function}]},
        {"role": "tool", "content": "3"},
        {"role": "assistant", "content": [{"type": "text", "text": "It is 3. "}]},
    ]
    assert render(tokenizer, messages, tools=[CALCULATOR]) == (
        "<|im_start|>system\nBe brief.\n\nYou may call these tools:\n"
        + json.dumps(CALCULATOR["function"])
        + "<|im_end|>\n<|im_start|>user\n What is 1+2?\n<|im_end|>\n"
        + f"<|im_start|>assistant\n{emitted}<|im_end|>\n"
        + "<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n"
        + "<|im_start|>assistant\nIt is 3. <|im_end|>\n"
    )


def test_arguments_given_as_an_object_render_like_their_json(tokenizer):
    def rendered(arguments):
        call = {"function": {"name": "add", "arguments": arguments}}
        return render(tokenizer, [{"role": "assistant", "content": "So:", "tool_calls": [call]}])

    assert rendered({"a": 1, "b": "ü"}) == rendered('{"a": 1, "b": "ü"}')
    assert "So:\n<tool_call>" in rendered("{}")


def test_a_renderer_of_qwen3s_format_gives_the_prompts_that_were_trained_on(tokenizer):
    qwen3 = pytest.importorskip("renderers.qwen3")
    messages = [{"role": "user", "content": "What is 37 * 12?"}]
    rendered = qwen3.Qwen3Renderer(tokenizer).render_ids(
        messages, tools=[CALCULATOR], add_generation_prompt=True
    )
    system = {"role": "system", "content": long_preamble([CALCULATOR])}
    assert rendered == ids(tokenizer, [system, *messages], add_generation_prompt=True)


def test_tasks_come_from_their_seed_and_are_held_out_of_the_training_data():
    first, again, other = (list(tasks(seed, 200)) for seed in (5, 5, 6))
    assert first == again != other
    assert len({task["prompt"] for task in first}) == 200
    assert all(is_held_out(task["prompt"]) for task in first)
    stream = list(islice(conversations(5), 500))
    assert stream == list(islice(conversations(5), 500))
    contents = {
        item["content"] for row in stream for item in row.messages if item["role"] == "user"
    }
    assert not contents & {task["prompt"] for task in first}


def test_the_calculator_computes_and_refuses():
    assert calculator("(14 + 9) * 3") == "69"
    assert calculator("7 // 2 - -1") == "4"
    for refused in ("", "1 +", "2 ** 9", "1 // 0", "a", "1.5", "True", "9" * 13, "f(1)", "(" * 999):
        with pytest.raises(CalculatorError):
            calculator(refused)


def test_an_operation_is_written_with_the_parentheses_that_it_needs():
    operation = Operation(9, "-", Operation(Operation(2, "+", 1), "*", 2))
    assert text(operation) == "9 - (2 + 1) * 2"
    assert calculator(text(operation)) == str(value(operation)) == "3"
    assert steps(operation) == ["2 + 1", "3 * 2", "9 - 6"]


def test_an_answer_is_right_when_its_last_number_is():
    assert is_right("37 * 12 is 444. The answer is 444.", "444")
    assert not is_right("The answer is 4440.", "444")
    assert not is_right("444 or 445", "444")
    assert not is_right("I do not know.", "444")


def test_only_a_well_formed_call_is_executed():
    call = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "1"}}\n</tool_call>'
    assert expression_of(call) == "1"
    for broken in (call[:-3], call.replace("}}", "}"), call.replace("calc", "alc"), call + "x"):
        assert expression_of(broken) is None


def test_only_what_the_assistant_says_is_learned(tokenizer):
    batch = next(batches(SMALL._replace(batch=8), tokenizer))
    for row, labels in zip(batch.ids.tolist(), batch.labels.tolist(), strict=True):
        learned = tokenizer.decode([label for label in labels if label != IGNORED])
        turns = tokenizer.decode(row).split("<|im_start|>assistant\n")[1:]
        assert learned == "".join(turn.split("<|im_end|>")[0] + "<|im_end|>" for turn in turns)


def test_the_script_gives_the_same_weights_and_the_same_tokenizer_again(tmp_path):
    digests = set()
    for name in ("first", "second"):
        trained = train_tokenizer(SMALL.seed)
        digests.add(save(train(SMALL, trained), trained, tmp_path / name))
    assert len(digests) == 1
    ours, theirs = (folder / "tokenizer.json" for folder in (tmp_path / "first", FOLDER))
    assert ours.read_bytes() == theirs.read_bytes()


def test_at_temperature_1_it_is_right_about_half_of_the_time():
    model, tokenizer = load(FOLDER)
    result = evaluate(model, tokenizer, count=60, temperature=1.0)
    assert 0.2 < result.right < 0.75
    assert result.well_formed >= 0.9
