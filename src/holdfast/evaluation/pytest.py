"""`holdfast.evaluation` under the name of eval-protocol's module for its decorator and processors,
for `from holdfast.evaluation.pytest import evaluation_test`."""

from holdfast import evaluation


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(evaluation, name)


def __dir__() -> list[str]:
    return dir(evaluation)
