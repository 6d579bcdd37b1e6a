"""Metrics as text: families of several sources, histograms, labels that need escaping."""

from holdfast.prometheus import Family, histogram, label, render, single


def test_families_of_several_sources_are_listed_together() -> None:
    first = [single("up", "gauge", 1), single("calls_total", "counter", 12_345_678)]
    second = [single("up", "gauge", 0)]
    text = render([('worker="0"', first), ('worker="1"', second)], prefix="x_")
    assert text.splitlines() == [
        "# TYPE x_up gauge",
        'x_up{worker="0"} 1',
        'x_up{worker="1"} 0',
        "# TYPE x_calls_total counter",
        'x_calls_total{worker="0"} 12345678',
    ]


def test_a_histogram_counts_what_is_below_each_limit() -> None:
    samples = histogram('wire="a"', (0.5, 2), counts=[1, 0, 3], total=9.25)
    text = render([("", [Family("seconds", "histogram", tuple(samples))])], prefix="")
    assert text.splitlines() == [
        "# TYPE seconds histogram",
        'seconds_bucket{wire="a",le="0.5"} 1',
        'seconds_bucket{wire="a",le="2"} 1',
        'seconds_bucket{wire="a",le="+Inf"} 4',
        'seconds_sum{wire="a"} 9.25',
        'seconds_count{wire="a"} 4',
    ]


def test_labels_are_escaped() -> None:
    assert label("model", 'a"b\\c\nd') == r'model="a\"b\\c\nd"'
