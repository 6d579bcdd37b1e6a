"""A trajectory as a person reads it."""

import msgspec

from holdfast.records.history import History
from holdfast.records.message import assistant, user
from holdfast.records.task import Task
from holdfast.records.trajectory import TrajectoryKey
from holdfast.records.view import TrajectoryView
from holdfast.view.reading.conversation import MAX_ITEMS, items_of, parts_of, tabs_of
from holdfast.view.reading.tokens import blocks_of, part_of
from support.evaluation.graded_runs import with_tools
from support.records import generated


def view(*records) -> TrajectoryView:
    task = Task(id="t", messages=(user("do t"),))
    return TrajectoryView(TrajectoryKey("r", "t", 0), task, History(records))


def kinds(items) -> list[str]:
    return [item.kind for item in items]


def test_steps_stand_between_the_messages_where_they_happened():
    seen = view(*with_tools().records)
    [tab] = tabs_of(seen)
    items = items_of(seen, tab)
    assert kinds(items) == [
        *("user", "assistant", "tool", "environment", "environment", "user", "value", "assistant"),
    ]
    look = items[1]
    assert (look.reasoning, look.calls[0][0]) == ("What is kelp?", "look_up")
    tool = items[2]
    assert (tool.text, tool.reward) == ("Kelp is a large brown alga.", 0.5)


def test_a_branch_and_a_simulated_user_have_their_own_tabs_and_names():
    said = generated("1.0.0", added=(user("play the user"),), message=assistant("I want kelp."))
    seen = view(
        generated("0", added=("task:0",)),
        msgspec.structs.replace(said, trainable=False, model="other"),
        generated("2", base="0", keep=5, added=(user("I want kelp."),)),
    )
    main, other = tabs_of(seen)
    assert (main.title, main.replies) == ("conversation", 2)
    assert other.title == "branch 1.0.0 of other"
    assert kinds(items_of(seen, main)) == ["user", "assistant", "simulated", "assistant"]
    assert items_of(seen, main)[2].who == "user, simulated by [1.0.0] other"
    assert kinds(items_of(seen, other)) == ["user", "simulated"]


def test_a_simulated_user_is_told_apart_when_it_repeats_itself():
    def said(path, **more):
        reply = generated(path, message=assistant("Goodbye!"), **more)
        return msgspec.structs.replace(reply, trainable=False, model="other")

    seen = view(
        said("1.0", added=(user("play the user"),)),
        said("1.1", base="1.0", keep=5),
        generated("0", added=("task:0", user("Goodbye!")), message=assistant("Goodbye!")),
        generated("2", base="0", keep=5, added=(user("Goodbye!"), user("do t"))),
    )
    items = items_of(seen, tabs_of(seen)[0])
    assert kinds(items) == ["user", "simulated", "assistant", "simulated", "user", "assistant"]
    assert items[1].who == "user, simulated by other"


def test_what_was_said_before_a_prefix_break_has_a_tab():
    seen = view(
        generated("0", added=("task:0",), message=assistant("first")),
        generated("1", base="0", keep=1, added=(user("anew"),), prefix_break="rewritten"),
    )
    main, before = tabs_of(seen)
    assert [item.text for item in items_of(seen, main)] == ["anew", "reply 1"]
    assert (before.path, items_of(seen, before)[1].text) == ("0", "first")


def test_parts_are_all_items_in_order():
    replies = [
        generated(str(n), base=str(n - 1) if n else "", keep=5 * n, added=(user(f"{n}"),))
        for n in range(300)
    ]
    seen = view(*replies)
    [tab] = tabs_of(seen)
    items = items_of(seen, tab)
    parts = parts_of(items)
    assert [at for part in parts for at in part] == list(range(600))
    assert max(map(len, parts)) <= MAX_ITEMS
    blocks = blocks_of(seen.history, tab, None)
    total = [token for block in blocks for token in block.tokens]
    count = part_of(blocks, 0)[1]
    shown = [t for n in range(count) for block in part_of(blocks, n)[0] for t in block.tokens]
    assert shown == total
    assert [token.kind for token in total[:5]] == ["prompt", "prompt", *["sampled"] * 3]
