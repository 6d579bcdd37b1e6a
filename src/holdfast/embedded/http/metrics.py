"""`/metrics` of the embedded engine."""

from holdfast.embedded.scheduler.engine import DecodeEngine
from holdfast.prometheus import Family, histogram, label, render, single


def render_metrics(engine: DecodeEngine, *, served: str) -> str:
    return render([(label("model_name", served), _families(engine))], prefix="holdfast_")


def _families(engine: DecodeEngine) -> list[Family]:
    stats = engine.statistics
    finished = [
        ("", label("finish_reason", reason), float(count))
        for reason, count in sorted(stats.finished.items())
    ]
    limits = [1 << power for power in range(len(stats.rows) - 1)]
    passes = histogram("", limits, counts=stats.rows, total=stats.row_sum)
    return [
        single("requests_running", "gauge", engine.running),
        single("requests_waiting", "gauge", engine.waiting),
        single("paused", "gauge", engine.paused),
        single("kv_cache_usage_ratio", "gauge", engine.cache_use),
        single("prompt_tokens_total", "counter", stats.prompt_tokens),
        single("generation_tokens_total", "counter", stats.generation_tokens),
        single("weight_updates_total", "counter", stats.weight_updates),
        Family("requests_finished_total", "counter", tuple(finished)),
        Family("weight_version_info", "gauge", (("", label("version", engine.version), 1.0),)),
        Family("pass_tokens", "histogram", tuple(passes)),
    ]
