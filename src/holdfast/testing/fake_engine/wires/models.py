"""`/v1/models` of each engine."""

from holdfast.engine_api.responses import model_list
from holdfast.testing.fake_engine.options import FakeOptions

VLLM_VERSION = "0.32.0"


def vllm_models(options: FakeOptions, created: int) -> object:
    return model_list(
        options.model,
        created=created,
        owner="vllm",
        root=options.model,
        max_model_len=options.max_model_len,
        **_extensions(options),
    )


def sglang_models(options: FakeOptions, created: int) -> object:
    model = {
        "id": options.model,
        "object": "model",
        "created": created,
        "owned_by": "sglang",
        "root": options.model,
        "parent": None,
        "max_model_len": options.max_model_len,
        **_extensions(options),
    }
    return {"object": "list", "data": [model]}


def fireworks_models(options: FakeOptions, created: int) -> object:
    model = {
        "id": options.model,
        "object": "model",
        "owned_by": "fireworks",
        "created": created,
        "kind": "HF_BASE_MODEL",
        "supports_chat": True,
        "supports_image_input": False,
        "supports_tools": True,
        "context_length": options.max_model_len,
        **_extensions(options),
    }
    return {"object": "list", "data": [model]}


def openai_models(options: FakeOptions, created: int) -> object:
    model = {"id": options.model, "object": "model", "created": created, "owned_by": "openai"}
    return {"object": "list", "data": [model]}


def _extensions(options: FakeOptions) -> dict[str, str]:
    """Returns fields that no real engine has. They name the renderer of the tokens and the
    distribution of the logprobs, and say whether the random numbers of a seed depend on the
    position."""
    if not options.describes:
        return {}
    extensions = {"renderer": "bytes", "logprobs_mode": options.logprobs_mode}
    return extensions | ({"seeds": "position"} if options.seeds == "position" else {})
