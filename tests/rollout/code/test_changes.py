"""What code changes of what it was made with, and what it only reads: read in its source."""

import functools
import importlib.util
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from holdfast.rollout.code import fingerprint
from holdfast.rollout.code.fingerprint import fingerprint_of


def told_apart(make, one, other) -> bool:
    assert fingerprint_of(make(one)) == fingerprint_of(make(one))
    return fingerprint_of(make(one)) != fingerprint_of(make(other))


def imported(folder: Path, name: str, source: str) -> ModuleType:
    (folder / f"{name}.py").write_text(source)
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- what only has an element handed on, or is set anew, counts


def element_under_a_key(cfg):
    async def rollout(t):
        system = cfg["system"]
        t.add({"role": "system", "content": system})

    return rollout


def element_in_a_loop(cfg):
    prompts = [cfg["system"]]

    async def rollout(t):
        messages = []
        for prompt in prompts:
            messages.append({"role": "user", "content": prompt})
        await t.generate(messages)

    return rollout


def element_of_an_attribute(cfg):
    made = SimpleNamespace(few=[cfg["system"]])

    async def rollout(t):
        messages = []
        for example in made.few:
            messages.append(example)

    return rollout


class ElementOfOwn:
    def __init__(self, cfg):
        self.cfg = cfg

    async def __call__(self, t):
        system = self.cfg["system"]
        await t.generate([{"role": "system", "content": system}])


def set_anew(cfg):
    rows = [cfg]

    async def rollout(t):
        for row in rows:
            row = dict(row)
            row["system"] = "seen"

    return rollout


def added_to(cfg):
    messages = [cfg["system"]]

    async def rollout(t):
        history = messages
        history = [*history, "more"]
        history.append("and more")

    return rollout


def given_to_us_in_a_dict(cfg):
    few = [cfg["system"]]

    async def rollout(t):
        await t.generate({"messages": few})

    return rollout


class MadeByItsBase:
    def setup(self, cfg):
        self.system = cfg["system"]


class SetUp(MadeByItsBase):
    def __init__(self, cfg):
        self.setup(cfg)

    async def __call__(self, t):
        t.add(self.system)


class Reader:
    def __init__(self, cfg):
        self.cfg = cfg

    async def __call__(self, t):
        other = SimpleNamespace(cfg=[])
        print(self.cfg["system"], threading.Thread(args=(other.cfg,)))


def cached(cfg):
    system = cfg["system"]

    @functools.lru_cache
    def prompt():
        return system

    async def rollout(t):
        t.add(prompt())

    return rollout


@pytest.mark.parametrize(
    "make",
    [
        element_under_a_key,
        element_in_a_loop,
        element_of_an_attribute,
        ElementOfOwn,
        set_anew,
        added_to,
        given_to_us_in_a_dict,
        SetUp,
        Reader,
        cached,
    ],
)
def test_another_value_is_another_rollout(make) -> None:
    assert told_apart(make, {"system": "A"}, {"system": "B"})


# --- what is changed does not


def test_a_field_of_a_dataclass_that_its_methods_change_does_not_count(tmp_path: Path) -> None:
    source = """from dataclasses import dataclass

@dataclass
class Agent:
    hint: int
    calls: int = 0

    async def __call__(self, t):
        self.calls += 1

def held(agent):
    async def rollout(t):
        await agent(t)
    return rollout
"""
    module = imported(tmp_path, "counting_field", source)
    agent = module.Agent(1)
    before = fingerprint_of(module.held(agent))
    agent.calls = 5
    assert fingerprint_of(module.held(agent)) == before
    assert fingerprint_of(module.held(module.Agent(2))) != before


def test_elements_that_are_handed_on_may_change() -> None:
    def make(rows):
        async def rollout(t):
            for row in rows:
                threading.Thread(target=print, args=(row,))

        return rollout

    rows = [{"n": 1}, "a"]
    before = fingerprint_of(make(rows))
    rows[0]["n"] = 2
    assert fingerprint_of(make(rows)) == before
    assert fingerprint_of(make([{"n": 1}, "b"])) != before


class Worker(threading.Thread):
    """What a library's methods set is where it stands."""

    def __init__(self, hint):
        super().__init__(daemon=True)
        self.hint = hint

    async def __call__(self, t):
        t.add(self.hint)


def test_attributes_that_a_librarys_methods_set_do_not_count() -> None:
    worker = Worker("A")
    before = fingerprint_of(worker)
    worker.start()
    worker.join()
    assert fingerprint_of(worker) == before != fingerprint_of(Worker("B"))


# --- what it costs


def test_the_files_of_a_class_are_read_once_for_all_its_objects(
    tmp_path: Path, monkeypatch
) -> None:
    source = "class Item:\n    def __init__(self, n): self.n = n\n"
    source += "def make(items):\n    async def rollout(t): print(items[0].n)\n    return rollout\n"
    module = imported(tmp_path, "many_items", source)
    reads, files_of = [], fingerprint.files_of
    monkeypatch.setattr(
        fingerprint, "files_of", lambda *given, **more: reads.append(1) or files_of(*given, **more)
    )
    fingerprint_of(module.make([module.Item(n) for n in range(200)]))
    assert len(reads) < 20


def test_helpers_of_a_partial_in_a_partial_are_read_once(tmp_path: Path, monkeypatch) -> None:
    from holdfast.rollout.code import changes

    calls = "".join(f"    h{{0}}_{at}(x)\n" for at in range(6))
    levels = [
        f"def h{level}_{at}(x):\n{calls.format(level + 1)}\n"
        for level in range(5)
        for at in range(6)
    ]
    last = [f"def h5_{at}(x): return x\n" for at in range(6)]
    source = "".join(
        [*last, *levels, "def tool(x, k=1):\n    h0_0(x)\n", "async def roll(t, fn): fn(t)\n"]
    )
    module = imported(tmp_path, "deep_helpers", source)
    reads, nodes = [], changes.nodes_of
    monkeypatch.setattr(changes, "nodes_of", lambda subject: reads.append(1) or nodes(subject))
    fingerprint_of(functools.partial(module.roll, fn=functools.partial(module.tool, k=2)))
    assert len(reads) < 2_000


def test_a_class_that_holds_itself_has_a_fingerprint_without_a_file() -> None:
    namespace: dict = {"__name__": "__main__"}
    exec(
        "class A: pass\nA.kind = A\ndef make(v):\n    async def rollout(t): return v\n"
        "    return rollout\nrollout = make(A())",
        namespace,
    )
    assert fingerprint_of(namespace["rollout"])
