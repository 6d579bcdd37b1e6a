"""Tokenizers and chat templates for tests: a small vocabulary with every family's markup."""

import functools
import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from holdfast.records.message import FunctionCall, Message, Role, ToolCall

HY = ("think", "tool_calls", "tool_call", "arg_key", "arg_value", "tool_responses", "tool_response")
SPECIAL = [
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>"),
    *("<|image_pad|>", "<|video_pad|>"),
    *("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    *("<|end_of_text|>", "<|eom_id|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>"),
    *("<|assistant|>", "<|observation|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>"),
    *("<|im_middle|>", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    *("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
    *("<|media_begin|>", "<|media_content|>", "<|media_pad|>", "<|media_end|>"),
    *("]~!b[", "]~b]", "[e~[", "〈|EOS|〉"),
    *(f"<｜{item}▁of▁sentence｜>" for item in ("begin", "end")),
    *(f"<｜{item}｜>" for item in ("User", "Assistant", "latest_reminder", "tool▁sep")),
    *(f"<｜tool▁{item}▁{end}｜>" for item in ("calls", "call") for end in ("begin", "end")),
    *(f"<｜tool▁{item}▁{end}｜>" for item in ("outputs", "output") for end in ("begin", "end")),
    *(f"<｜{item}:opensource｜>" for item in ("hy_begin_of_sentence", "hy_eos", "hy_User")),
    *(f"<｜{item}:opensource｜>" for item in ("hy_Assistant", "reasoning_mode")),
    *("<bos>", "<eos>", "<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|think|>", "<|tool>"),
    *("<tool|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>"),
    *("<|image>", "<|image|>", "<image|>"),
    *(f"<｜{item}｜>" for item in ("action", "query", "authority", "domain", "title", "read_url")),
    *(f"<|message_{item}|>" for item in ("user", "model", "system", "tool")),
    *(f"<|content_{item}|>" for item in ("text", "thinking", "image", "audio_input", "xml")),
    *(f"<|content_{item}|>" for item in ("invoke_tool_json", "invoke_tool_text")),
    *("<|content_model_end_sampling|>", "<|end_message|>", "<|audio_end|>"),
    *("<|unused_200053|>", "<|unused_200054|>"),
]
MARKUP = [
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<assistant>", "</assistant>"),
    *("<minimax:tool_call>", "</minimax:tool_call>", "｜DSML｜", "<tool_sep:opensource>"),
    *(f"<{slash}{item}:opensource>" for item in HY for slash in ("", "/")),
]

FAMILIES = (
    *("deepseek-r1", "deepseek-v3", "deepseek-v4", "gemma4", "glm-4.5", "glm-5", "glm-5.1"),
    *("glm-5.3", "hy3", "inkling", "kimi-k2", "kimi-k2.5", "laguna-m.1", "laguna-s-2.1"),
    *("laguna-xs-2.1", "laguna-xs.2", "llama-3", "minimax-m2", "nemotron-3", "nemotron-3-ultra"),
    *("nemotron-3.5", "prime-qwen3", "qwen3", "qwen3-vl", "qwen3.5", "qwen3.6", "qwen3.8"),
)
"""All that need no more than special tokens; gpt-oss needs a vocabulary that is downloaded."""

_TURNS = """{%- for m in messages %}
{{- '<|im_start|>' + m.role + '\\n' + m.content }}
{%- for c in m.tool_calls or [] %}
{{- '<tool_call>' + {'name': c.function.name, 'arguments': c.function.arguments} | tojson }}
{{- '</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
_TOOLS = """{%- if tools %}
{{- '<|im_start|>tools\\n' + tools | tojson + '<|im_end|>\\n' }}{% endif %}
"""
_THINKING = """{%- set ns = namespace(last=-1) %}
{%- for m in messages %}
{%- if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
{{- '<|im_start|>' + m.role + '\\n' }}
{%- if m.role == 'assistant' and m.reasoning_content and loop.index0 > ns.last %}
{{- '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}
{%- endif %}
{{- m.content }}
{%- for c in m.tool_calls or [] %}
{{- '<tool_call>' + {'name': c.function.name, 'arguments': c.function.arguments} | tojson }}
{{- '</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

# What the qwen3 family writes, in our own words.
QWEN3 = """{%- set ns = namespace(last=messages | length - 1, found=false) %}
{%- for m in messages[::-1] %}
{%- if not ns.found and m.role == 'user' %}
{%- set ns.found = true %}{% set ns.last = messages | length - 1 - loop.index0 %}{% endif %}
{%- endfor %}
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{ messages[0].content + '\\n\\n' }}{% endif %}
{{- '# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\n' }}
{{- 'You are provided with function signatures within <tools></tools> XML tags:\\n<tools>' }}
{%- for tool in tools %}{{ '\\n' + tool | tojson }}{% endfor %}
{{- '\\n</tools>\\n\\nFor each function call, return a json object with function name and ' }}
{{- 'arguments within <tool_call></tool_call> XML tags:\\n<tool_call>\\n' }}
{{- '{"name": <function-name>, "arguments": <args-json-object>}\\n</tool_call><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for m in messages %}
{%- if m.role == 'assistant' %}
{{- '<|im_start|>assistant\\n' }}
{%- if loop.index0 > ns.last and (loop.last or m.reasoning_content) %}
{{- '<think>\\n' + (m.reasoning_content or '') + '\\n</think>\\n\\n' }}{% endif %}
{{- m.content }}
{%- for c in m.tool_calls or [] %}
{%- if not loop.first or m.content %}{{ '\\n' }}{% endif %}
{{- '<tool_call>\\n{"name": "' + c.function.name + '", "arguments": ' }}
{{- c.function.arguments | tojson + '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif m.role == 'tool' %}
{%- if loop.first or loop.previtem.role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
{{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
{%- if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}
{%- elif m.role == 'user' or not loop.first %}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

TEMPLATES = {
    "plain": _TOOLS + _TURNS,
    "qwen3": QWEN3,
    "stripping": _TOOLS + _TURNS.replace("m.content", "m.content.strip()"),
    "default system": """{%- if messages[0].role != 'system' %}
{{- '<|im_start|>system\\nBe kind.<|im_end|>\\n' }}{% endif %}"""
    + _TURNS,
    "forgetful": _TOOLS + _THINKING,
    "remembering": _TOOLS + _THINKING.replace("and loop.index0 > ns.last", ""),
    "opened": _TOOLS
    + _THINKING.replace("and loop.index0 > ns.last", "").replace(
        "{{ '<|im_start|>assistant\\n' }}", "{{ '<|im_start|>assistant\\n<think>\\n' }}"
    ),
    "toggled": _TOOLS
    + _TURNS.replace(
        "{{ '<|im_start|>assistant\\n' }}",
        """{{ '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and not enable_thinking %}
{{- '<think>\\n\\n</think>\\n\\n' }}{% endif %}""",
    ),
    "merging": """{%- for m in messages %}
{%- if m.role == 'tool' %}
{%- if loop.previtem is undefined or loop.previtem.role != 'tool' %}
{{- '<|im_start|>user' }}{% endif %}
{{- '\\n<tool_response>' + m.content + '</tool_response>' }}
{%- if loop.nextitem is undefined or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}
{%- else %}
{{- '<|im_start|>' + m.role + '\\n' + m.content }}
{%- for c in m.tool_calls or [] %}
{{- '<tool_call>' + {'name': c.function.name, 'arguments': c.function.arguments} | tojson }}
{{- '</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    "headers": """{{- '<|begin_of_text|>' }}
{%- for m in messages %}
{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\\n' + m.content | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n' }}{% endif %}""",
    "spaced": """{%- for m in messages %}
{%- if m.role == 'assistant' %}
{%- generation %}{{ ' ' + m.content + ' <|im_end|>' }}{% endgeneration %}
{%- else %}{{ '<|im_start|>' + m.content + '<|im_start|>' }}{% endif %}
{%- endfor %}""",
    "annotating": _TURNS.replace(
        "m.content }}", "m.content + ('' if loop.last or m.role != 'assistant' else ' (said)') }}"
    ),
    "rewriting": "{{ messages | length }} said" + _TURNS,
    "endless": """{%- for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}""",
    "strict": """{%- for m in messages %}
{%- if m.role not in ('user', 'assistant') %}{{ raise_exception('only two may speak') }}{% endif %}
{%- endfor %}"""
    + _TURNS,
    "dated": "{{ strftime_now('%Y-%m-%d') }}" + _TURNS,
}
APPENDING = (
    "plain",
    "toggled",
    "stripping",
    "default system",
    "remembering",
    "merging",
    "headers",
    "dated",
)

TOOL: dict[str, object] = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks up, naïvely.",
        "parameters": {"type": "object", "properties": {"what": {"type": "string"}}},
    },
}


def call(what: str, identifier: str = "") -> ToolCall:
    arguments = json.dumps({"what": what}, ensure_ascii=False)
    return ToolCall(identifier, FunctionCall("look", arguments))


def result(text: str, identifier: str = "call_0") -> Message:
    return Message(Role.TOOL, text, tool_call_id=identifier, name="look")


@functools.cache
def vocabulary() -> str:
    """A trained byte-level BPE with all markup, as the text of a tokenizer.json."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    page = Path(__file__).read_text(encoding="utf-8")
    tokenizer.train_from_iterator([page, "user\nassistant\nsystem\n\n the look what "], trainer)
    tokenizer.add_special_tokens([AddedToken(item, normalized=False) for item in SPECIAL])
    tokenizer.add_tokens([AddedToken(item, normalized=False) for item in MARKUP])
    return str(tokenizer.to_str())


def write_model(folder: Path, template: str | None = None, **config: object) -> Path:
    """A folder as a model has it: tokenizer, its settings and a chat template."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(vocabulary(), encoding="utf-8")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "bos_token": "<|begin_of_text|>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    if template is not None:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    if config:
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
