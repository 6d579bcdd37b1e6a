"""`/metrics` in Prometheus' text format."""

from holdfast.embedded.scheduler.engine import DecodeEngine


def text(engine: DecodeEngine, *, served: str) -> str:
    stats = engine.statistics
    label = f'{{model_name="{_escaped(served)}"}}'
    lines: list[str] = []

    def add(name: str, kind: str, value: float) -> None:
        lines.extend((f"# TYPE holdfast_{name} {kind}", f"holdfast_{name}{label} {value:.15g}"))

    add("requests_running", "gauge", engine.running)
    add("requests_waiting", "gauge", engine.waiting)
    add("paused", "gauge", float(engine.paused))
    add("kv_cache_usage_ratio", "gauge", engine.cache_use)
    add("prompt_tokens_total", "counter", stats.prompt_tokens)
    add("generation_tokens_total", "counter", stats.generation_tokens)
    add("weight_updates_total", "counter", stats.weight_updates)
    lines.append("# TYPE holdfast_requests_finished_total counter")
    lines.extend(
        f'holdfast_requests_finished_total{label[:-1]},finish_reason="{reason}"}} {count}'
        for reason, count in sorted(stats.finished.items())
    )
    lines.append("# TYPE holdfast_weight_version_info gauge")
    lines.append(
        f'holdfast_weight_version_info{label[:-1]},version="{_escaped(engine.version)}"}} 1'
    )
    lines.extend(_rows(engine, label))
    return "\n".join(lines) + "\n"


def _rows(engine: DecodeEngine, label: str) -> list[str]:
    """How many tokens the passes computed, as a histogram."""
    stats, name = engine.statistics, "holdfast_pass_tokens"
    lines, below = [f"# TYPE {name} histogram"], 0
    for power, count in enumerate(stats.rows):
        below += count
        limit = str(1 << power) if power < len(stats.rows) - 1 else "+Inf"
        lines.append(f'{name}_bucket{label[:-1]},le="{limit}"}} {below}')
    lines += [f"{name}_sum{label} {stats.row_sum}", f"{name}_count{label} {below}"]
    return lines


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
