"""What makes two scorers the same: their code, their mode, and what they are called with."""

from collections.abc import Mapping, Sequence

from holdfast.evaluation.definition.definition import Definition, Mode, Variant
from holdfast.records.run import Code
from holdfast.rollout.code.fingerprint import noting


def scorer_fingerprint(
    definition: Definition,
    variant: Variant,
    arguments: Mapping[str, object] | None = None,
    *,
    judges: Sequence[str] = (),
    tasks: str = "",
) -> tuple[str, Code]:
    """`name@digest`, and what it stands for. Its decorators, and other evaluations, are no part of
    it. `arguments` are the values of its parameters beside the variant's own, and `self`; `judges`
    are the identities of those that it is handed; `tasks` is the digest of all rows."""
    values = dict(arguments or {})
    instance = values.pop("self", None)
    with noting(definition.function) as parts:
        parts.include(definition.scorer_parts)
        if instance is not None:  # Its subclass may be in another file.
            parts.add(type(instance))
        parts.add_values({**variant.keywords, **values})
        parts.put("mode", definition.mode)
        if judges:
            parts.put("judges", repr(sorted(judges)))
        if definition.mode is Mode.GROUPWISE and len(variant.settings) > 1:
            # Whom a row is compared with is part of how it is judged.
            parts.add_values({"settings": [setting.params for setting in variant.settings]})
        elif definition.mode is Mode.ALL:
            parts.put("tasks", tasks)
    return f"{definition.function.__name__}@{parts.digest}", Code(parts.digests)
