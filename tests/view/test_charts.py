"""Charts are of one scale, and no mark stands at another step than its own."""

from holdfast.view.charts import LEFT, MAX_BAR, RIGHT, WIDTH, Mark, bar_chart, line_chart


def test_a_mark_stands_at_its_step_although_a_line_ends_before():
    chart = line_chart(
        {"gap": [(1.0, 0.5)]}, title="gap", axis="step", marks=[Mark(5.0, "killed")], span=(1, 9)
    )
    assert f'class="mark" d="M{(LEFT + WIDTH - RIGHT) / 2} ' in chart


def test_a_single_bar_does_not_fill_the_chart():
    assert f'width="{MAX_BAR - 4}"' in bar_chart([("0", 4, "")], title="Distribution of rewards")
