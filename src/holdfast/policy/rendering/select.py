"""Chooses the renderer of a tokenizer.

A family is chosen without being named in two cases: the `renderers` package knows the model's name,
or the family renders probing conversations exactly as the tokenizer's own chat template does.
Otherwise the template decides.
"""

from collections.abc import Mapping
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path

from holdfast.policy.client.replicas import EnginePolicy
from holdfast.policy.policy import Policy
from holdfast.policy.rendering.family import FamilyRenderer, families, known_models
from holdfast.policy.rendering.jinja import template_of
from holdfast.policy.rendering.messages_only import MessagesOnly
from holdfast.policy.rendering.renderer import ByteRenderer, Renderer
from holdfast.policy.rendering.template import TemplateRenderer
from holdfast.policy.rendering.tokenizer import Tokenizer, load_tokenizer
from holdfast.records.encoding.declared import checks_arguments
from holdfast.records.errors import UsageError
from holdfast.records.message import FunctionCall, Message, Role, ToolCall, assistant, system, user

BYTES, TEMPLATE = "bytes", "template"


class NoTokenizer(UsageError):
    """The tokenizer of the engine's model is not on this machine, and no other tokenizer is
    named."""


def renderer_of(
    policy: Policy, *, tokenizer: str | Path | None = None, family: str | None = None
) -> Renderer:
    """Returns the renderer of a checked policy's model. It uses the named tokenizer, or else the
    tokenizer that the engine reports."""
    if not isinstance(policy, EnginePolicy):
        name = type(policy).__name__
        raise UsageError(f"{name} does not say how its model renders; give renderer=…")
    if not policy.has_tokens:
        return MessagesOnly()
    described = policy.endpoints[0].described
    if family == BYTES and described.renderer not in (None, BYTES):
        raise UsageError(
            f"the bytes of --renderer {BYTES} are not tokens of {policy.model!r}; its engine says "
            f"that it is rendered by its {described.renderer}"
        )
    family = family or (None if tokenizer else described.renderer)
    source = tokenizer or described.root or policy.model
    if tokenizer or family == BYTES or Path(source).is_dir():
        return renderer_for(source, family=family)
    try:
        return renderer_for(source, family=family)
    except UsageError as error:
        raise NoTokenizer(
            f"{error} — the engine says that its model is {source!r}; if its tokenizer is in a "
            "folder here, name that with --tokenizer"
        ) from error


@checks_arguments()
def renderer_for(
    tokenizer: str | Path,
    *,
    family: str | None = None,
    tool_parser: str | None = None,
    keep_reasoning: bool = False,
    options: Mapping[str, object] | None = None,
    date: datetime | None = None,
) -> Renderer:
    """Returns the renderer for the tokenizer in a folder (or under a hub name).

    If `family` is None, a renderer is chosen. "template" is the tokenizer's own chat template,
    "bytes" needs no tokenizer, and any other name is a family of the `renderers` package. `options`
    go to the template (for example `enable_thinking`). `date` is the date for templates that read
    today's date. A fixed date lets a run that is resumed tomorrow render the same.
    """
    if family == BYTES:
        return ByteRenderer()
    _check(family, tool_parser=tool_parser, keep_reasoning=keep_reasoning)
    loaded = load_tokenizer(tokenizer)
    if family == TEMPLATE:
        return _template(loaded, tool_parser=tool_parser, options=options, date=date)
    family_name = family
    if family_name is None and tool_parser is None:
        family_name = _installed_models().get(loaded.name_or_path)
    if family_name is None:
        template = _template(loaded, tool_parser=tool_parser, options=options, date=date)
        family_name = None if tool_parser else _find_family(loaded, template, options)
        if family_name is None and not keep_reasoning:
            return template
    if family_name is None:
        raise UsageError(_NO_KEEPING)
    return FamilyRenderer(loaded, family_name, keep_reasoning=keep_reasoning, options=options)


_NO_KEEPING = (
    "only a family keeps reasoning that its template drops; name one, or leave keep_reasoning"
)


def _check(family: str | None, *, tool_parser: str | None, keep_reasoning: bool) -> None:
    """Raises `UsageError` for an argument that would have no effect."""
    if family == TEMPLATE and keep_reasoning:
        raise UsageError(_NO_KEEPING)
    if family in (None, TEMPLATE):
        return
    if family not in families():
        known = ", ".join((BYTES, TEMPLATE, *families()))
        raise UsageError(f"there is no renderer {family!r}; there are {known}")
    if tool_parser is not None:
        raise UsageError(f"the family {family} parses its own tool calls; give no tool_parser")


def _template(
    tokenizer: Tokenizer,
    *,
    tool_parser: str | None,
    options: Mapping[str, object] | None,
    date: datetime | None,
) -> TemplateRenderer:
    now = datetime.now if date is None else lambda: date
    return TemplateRenderer(
        tokenizer,
        template_of(tokenizer, options or {}, now=now),
        parser=tool_parser,
        options={**(options or {}), **({} if date is None else {"date": date.isoformat()})},
    )


def _installed_models() -> dict[str, str]:
    # Without the package, the template is used. A broken package raises an error.
    return known_models() if find_spec("renderers") else {}


def _candidates(tokenizer: Tokenizer) -> list[str]:
    """Returns the families that the folder's own files and name suggest."""
    models = _installed_models()
    kind = str(tokenizer.config.get("model_type", "")).replace("_", "").replace("-", "").lower()
    name = str(tokenizer.config.get("_name_or_path") or "")
    names = {name, tokenizer.folder.name, "/".join(tokenizer.folder.parts[-2:])}
    matching = [
        family
        for model, family in models.items()
        if model in names or model.rpartition("/")[2] in names or _plain(family) == kind
    ]
    return list(dict.fromkeys(matching))


def _plain(family: str) -> str:
    return family.replace("-", "").replace(".", "")


def _find_family(
    tokenizer: Tokenizer, template: TemplateRenderer, options: Mapping[str, object] | None
) -> str | None:
    return next(
        (
            candidate
            for candidate in _candidates(tokenizer)
            if _renders_alike(candidate, template, options)
        ),
        None,
    )


def _renders_alike(
    family: str, template: TemplateRenderer, options: Mapping[str, object] | None
) -> bool:
    try:
        renderer = FamilyRenderer(template.tokenizer, family, options=options)
        return all(
            renderer.render(messages, tools) == template.render(messages, tools)
            for messages, tools in _PROBES
        )
    except UsageError:
        return False


_TOOL: dict[str, object] = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks something up.",
        "parameters": {"type": "object", "properties": {"what": {"type": "string"}}},
    },
}
_CALL = ToolCall("call00001", FunctionCall("look", '{"what": "é"}'))
_CONVERSATION = [user("Hello."), assistant("Yes?"), user("Look.")]
_TOOL_CONVERSATION = [
    *_CONVERSATION,
    Message(Role.ASSISTANT, "", tool_calls=(_CALL,), reasoning="Let me see."),
    Message(Role.TOOL, "Nothing.", tool_call_id="call00001", name="look"),
]
_PROBES: tuple[tuple[list[Message], list[dict[str, object]]], ...] = (
    (_CONVERSATION[:1], []),
    ([system("Be brief."), *_CONVERSATION], []),
    (_TOOL_CONVERSATION, [_TOOL]),
    ([system("Be brief."), *_TOOL_CONVERSATION, assistant("None."), user("Thanks.")], [_TOOL]),
)
