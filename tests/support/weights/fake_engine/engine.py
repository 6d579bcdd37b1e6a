"""A fake engine to which a trainer gives weights: `WeightedEngine`, and the process of one.

Outside of pytest, PYTHONPATH has to lead to `support`.
"""

from typing import Any

from msgspec import structs

from holdfast.testing import FakeEngine
from support.weights.fake_engine.weights import LoadedWeights, WeightedOptions, WeightOptions


class WeightedEngine(FakeEngine):
    """`FakeEngine`, with what it offers a trainer."""

    program = ("-m", "support.weights.fake_engine.engine")

    def __init__(self, *, weights: WeightOptions | None = None, **options: Any):
        super().__init__(**options)
        plain = structs.asdict(self._options)
        self._options = WeightedOptions(**plain, weights=weights or WeightOptions())


def main() -> None:
    from holdfast.testing.fake_engine.handle import main as serve
    from holdfast.testing.fake_engine.server import FakeServer
    from holdfast.testing.fake_engine.wires.registry import EngineSides
    from support.weights.fake_engine.sides import WeightedSGLang, WeightedVllm

    class WeightedServer(FakeServer):
        sides = EngineSides(WeightedVllm, WeightedSGLang)

        def make_weights(self) -> LoadedWeights:
            return LoadedWeights(self._options.weights)

    serve(WeightedOptions, WeightedServer)


if __name__ == "__main__":
    main()
