"""Lists the endpoints of each dialect of the fake engine."""

from collections.abc import Callable

from aiohttp import web
from msgspec import Struct

from holdfast.testing.fake_engine.options import FakeOptions
from holdfast.testing.fake_engine.request import FakeWire
from holdfast.testing.fake_engine.schedule import Schedule
from holdfast.testing.fake_engine.wires import models
from holdfast.testing.fake_engine.wires.fireworks import FireworksWire
from holdfast.testing.fake_engine.wires.sglang import SGLangWire
from holdfast.testing.fake_engine.wires.sglang_admin import SGLangSide
from holdfast.testing.fake_engine.wires.vllm import ChatWire, CompletionsWire, GenerateWire
from holdfast.testing.fake_engine.wires.vllm_admin import VllmSide


class EngineSides(Struct, frozen=True):
    """The classes that serve the endpoints that do not sample."""

    vllm: type[VllmSide] = VllmSide
    sglang: type[SGLangSide] = SGLangSide


class ServedRoutes(Struct):
    """The routes of an engine."""

    wires: dict[str, FakeWire]
    """The wires for sampling, by path."""
    models: dict[str, Callable[[FakeOptions, int], object]]
    add_side: Callable[[web.UrlDispatcher], None] | None = None
    health: bool = True


def served_routes(options: FakeOptions, schedule: Schedule, sides: EngineSides) -> ServedRoutes:
    adapters = schedule.weights.adapters
    if options.dialect == "sglang":
        return ServedRoutes(
            {"/generate": SGLangWire(options, adapters)},
            {"/v1/models": models.sglang_models},
            sides.sglang(options, schedule).add_to,
        )
    if options.dialect == "fireworks":
        # Its address ends in `/inference`. A test may leave this out.
        wire, listing = FireworksWire(options), models.fireworks_models
        return ServedRoutes(
            {"/v1/completions": wire, "/inference/v1/completions": wire},
            {"/v1/models": listing, "/inference/v1/models": listing},
            health=False,
        )
    if options.dialect == "chat":
        return ServedRoutes(
            {f"{options.base}/chat/completions": ChatWire(options, vllm=False)},
            {f"{options.base}/models": models.openai_models},
            health=False,
        )
    return ServedRoutes(
        {
            "/v1/completions": CompletionsWire(options, adapters),
            "/v1/chat/completions": ChatWire(options, vllm=True),
            "/inference/v1/generate": GenerateWire(
                options, adapters, enabled=options.dialect == "vllm-scale-out"
            ),
        },
        {"/v1/models": models.vllm_models},
        sides.vllm(options, schedule).add_to,
    )
