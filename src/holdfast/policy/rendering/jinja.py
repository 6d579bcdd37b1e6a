"""Renders chat templates with Jinja, in the environment that transformers gives them.

A template is data from a model's folder. It runs in Jinja's sandbox and sees only the conversation,
the tools, the special tokens and the options.
"""

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from holdfast.policy.rendering.tokenizer import Tokenizer, import_extra
from holdfast.records.errors import UsageError

Dicts = Sequence[dict[str, object]]


class ChatTemplate:
    """Turns messages and tools into text. The same input gives the same text, unless the template
    reads the time."""

    def __init__(
        self,
        source: str | dict[str, str],
        *,
        variables: Mapping[str, object],
        now: Callable[[], datetime] = datetime.now,
    ):
        self._variables = dict(variables)
        sources = {"default": source} if isinstance(source, str) else source
        environment = _environment(now)
        self._sources = sources
        self._compiled = {name: _compile(environment, text) for name, text in sources.items()}
        self.source = sources.get("tool_use") or next(iter(sources.values()))
        self.text = json.dumps(sources, sort_keys=True)
        # A template with the tags but without the field expects reasoning inside the text.
        tagged = "</think>" in self.source and "thinking" not in self.source.replace(
            "enable_thinking", ""
        )
        inline = tagged and "reasoning_content" not in self.source
        self.convert = _inline_reasoning if inline else _alias_reasoning
        if not {"default", "tool_use"} & set(sources):
            raise UsageError(
                f"the chat templates are named {', '.join(sorted(sources))}; "
                "one has to be named 'default'"
            )

    def render(self, messages: Dicts, tools: Dicts, *, opening: bool) -> str:
        """Returns the conversation's text. With `opening`, the text ends where the assistant begins
        to speak."""
        text: str = self._chosen(tools).render(
            **self._variables,
            messages=[self.convert(message) for message in messages],
            tools=list(tools) or None,
            documents=None,
            add_generation_prompt=opening,
        )
        return text

    def reads(self, variable: str) -> bool:
        """Returns whether the template's output may depend on this variable."""
        meta = import_extra("jinja2.meta", needed_by="a chat template")
        return all(
            variable in meta.find_undeclared_variables(item.environment.parse(self._sources[name]))
            for name, item in self._compiled.items()
        )

    def with_variables(self, **variables: object) -> "ChatTemplate":
        """Returns the same template with these variables."""
        other = copy.copy(self)
        vars(other)["_variables"] = {**self._variables, **variables}
        return other

    def _chosen(self, tools: Dicts) -> Any:
        names = ("tool_use", "default") if tools else ("default", "tool_use")
        return next(self._compiled[name] for name in names if name in self._compiled)


def template_of(
    tokenizer: Tokenizer,
    options: Mapping[str, object],
    *,
    now: Callable[[], datetime] = datetime.now,
) -> ChatTemplate:
    if tokenizer.chat_template is None:
        raise UsageError(
            f"{tokenizer.name_or_path} has no chat template; put a chat_template.jinja into the "
            "folder, or name the model's family"
        )
    variables = {**tokenizer.named_tokens, **options}
    return ChatTemplate(tokenizer.chat_template, variables=variables, now=now)


def template_errors() -> tuple[type[Exception], ...]:
    """Returns the errors that a template may raise for a conversation that it does not allow."""
    template_error: type[Exception] = import_extra(
        "jinja2", needed_by="a chat template"
    ).TemplateError
    return (template_error, ValueError, TypeError, KeyError, AttributeError)


def _alias_reasoning(message: dict[str, object]) -> dict[str, object]:
    # Templates use either name for reasoning.
    if "reasoning_content" not in message:
        return message
    return {"thinking": message["reasoning_content"], **message}


def _inline_reasoning(message: dict[str, object]) -> dict[str, object]:
    if "reasoning_content" not in message:
        return message
    rest = {key: value for key, value in message.items() if key != "reasoning_content"}
    thought = f"<think>\n{message['reasoning_content']}\n</think>\n\n"
    return {**rest, "content": f"{thought}{message['content']}"}


def _compile(environment: Any, text: str) -> Any:
    try:
        return environment.from_string(text)
    except import_extra("jinja2", needed_by="a chat template").TemplateSyntaxError as error:
        raise UsageError(f"the chat template is not Jinja: {error}") from error


def _environment(now: Callable[[], datetime]) -> Any:
    jinja2 = import_extra("jinja2", needed_by="a chat template")
    ext = import_extra("jinja2.ext", needed_by="a chat template")
    sandbox = import_extra("jinja2.sandbox", needed_by="a chat template")

    class Generation(ext.Extension):  # type: ignore[misc, name-defined]  # an extra
        """Accepts the `generation` blocks of templates, which mark the assistant's text for
        trainers. Here a block only groups its statements."""

        tags = {"generation"}  # noqa: RUF012  # jinja2's own way of naming a tag

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.Scope(body).set_lineno(line)

    def refuse(message: str) -> None:
        raise jinja2.exceptions.TemplateError(message)

    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: now().strftime(form)
    return environment


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML, which models were not trained on.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
