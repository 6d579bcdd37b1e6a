"""Snapshots of workspaces: the same tree comes back, and only what changed is stored."""

import asyncio
import os
import random
import tempfile

import pytest

from holdfast.environments.workspace import Workspace
from holdfast.environments.workspace.snapshots import snapshot as manifest
from holdfast.environments.workspace.snapshots.snapshot import PART_BYTES, SMALL_BYTES
from holdfast.records.errors import EnvironmentBroken
from support.environments.workspaces import Blobs, both, contents, needs_bwrap, opened

VARIED = """
mkdir -p a/b/c empty 'with space'
echo text > a/b/c/file; printf '\\xff\\x00bin' > a/bin; : > nothing
echo '#!/bin/sh' > run; chmod 755 run; chmod 600 a/bin
ln -s a/b link; ln -s /etc/passwd out; ln -s nowhere broken; ln a/bin hard
echo u > 'ünï–名前'; echo l > 'new
line'; echo b > "$(printf 'bad\\xff')"; echo d > -dash
mkdir -m 555 read_only; mkdir -m 000 closed; echo s > secret; chmod 000 secret
head -c 9000000 /dev/urandom > large; head -c 1048577 /dev/zero > zeros
head -c 12582912 /dev/zero > more_zeros
"""


async def brought_back(state: bytes, blobs: Blobs, **options) -> tuple[Workspace, dict]:
    workspace = Workspace(command_timeout=30.0, **options)
    workspace.blobs = blobs
    await workspace.restore(state)
    return workspace, contents(workspace.path)


@pytest.fixture
def fast_root():
    """In memory, where there is such a place: ten thousand files are slow on a busy disk."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield folder


@both
def test_everything_comes_back_as_it_was(sandbox):
    async def run():
        blobs = Blobs()
        async with opened(blobs=blobs, sandbox=sandbox) as workspace:
            output = await workspace.shell(VARIED)
            assert output == "[exit code 0]"
            before = contents(workspace.path)
            state = await workspace.snapshot()
        other, after = await brought_back(state, blobs, sandbox=sandbox)
        output = await other.shell(
            "echo more >> a/b/c/file; cat link/c/file; ./run; touch closed/x"
        )
        again = await other.snapshot()
        await other.close()
        return before, after, output, state, again

    before, after, message, state, again = asyncio.run(run())
    assert after == before
    assert len(after) == 23
    assert message.startswith("text\nmore\n")
    assert again != state


@both
def test_what_did_not_change_is_not_stored_again(sandbox):
    async def run():
        blobs = Blobs()
        files = {f"d{n % 7}/f{n}": f"content {n}" for n in range(50)} | {
            "big": "x" * 3 * PART_BYTES
        }
        async with opened(files, blobs=blobs, sandbox=sandbox) as workspace:
            first = await workspace.snapshot()
            stored = len(blobs.stored)
            same = await workspace.snapshot()
            await workspace.shell("cat big > /dev/null; touch d1/f1; mv d2 moved; cp d3/f3 copy")
            moved = await workspace.snapshot()
            moved_stored, blobs.stored = blobs.stored[stored:], []
            await workspace.write_file("d1/f1", "other")
            await workspace.shell("echo y >> big; chmod +x d1/f8")
            await workspace.snapshot()
            return first, same, moved, stored, moved_stored, blobs.stored

    first, same, moved, stored, moved_stored, changed = asyncio.run(run())
    assert same == first != moved
    assert stored == 3, "one pack of small files, one part of the large one, one listing"
    assert len(moved_stored) == 1, "a listing: the contents are known"
    assert sorted(changed) == [2, 5], "the other content, and the part that the large file grew by"


@needs_bwrap
def test_equal_folders_are_stored_as_equal_blobs():
    async def run():
        blobs = Blobs()
        states = []
        for sandbox in ("none", "bwrap"):
            files = {f"f{n}": f"{n}" for n in range(20)}
            async with opened(files, blobs=blobs, sandbox=sandbox) as workspace:
                await workspace.shell("mkdir d; echo x > d/y; chmod 700 d")
                states.append(await workspace.snapshot())
        return states, len(blobs.kept)

    states, kept = asyncio.run(run())
    assert states[0] == states[1]
    assert kept == 2


def test_a_change_of_the_same_size_in_the_same_moment_is_seen():
    async def run():
        async with opened({"f": "0000"}, sandbox="none") as workspace:
            states = set()
            for number in range(200):
                await workspace.write_file("f", f"{number:04}")
                states.add(await workspace.snapshot())
            return states

    assert len(asyncio.run(run())) == 200


def test_a_long_life_of_changes_comes_back(fast_root):
    seed = random.randrange(10**6)
    print("seed", seed)
    chance = random.Random(seed)

    async def run():
        blobs = Blobs()
        async with opened({"start": "x"}, blobs=blobs, sandbox="none", root=fast_root) as workspace:
            for _ in range(25):
                workspace._tree = None  # Changed by somebody else than a tool.
                change(workspace.path)
                state = await workspace.snapshot()
                if chance.random() < 0.3:
                    before = contents(workspace.path)
                    await workspace.restore(state)
                    assert contents(workspace.path) == before
            return len(state), len(contents(workspace.path))

    def change(folder: str) -> None:
        for _ in range(chance.randrange(1, 8)):
            path = os.path.join(folder, f"d{chance.randrange(3)}", f"f{chance.randrange(30)}")
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if os.path.exists(path) and chance.random() < 0.4:
                os.unlink(path)
            else:
                size = chance.choice(
                    [0, 10, *[3000] * 12, SMALL_BYTES, SMALL_BYTES + 1, PART_BYTES + 5]
                )
                with open(path, "wb") as file:
                    file.write(chance.randbytes(min(size, 4000)).ljust(size, b"."))
                os.chmod(path, chance.choice([0o644, 0o755, 0o600]))

    asyncio.run(run())


def test_ten_thousand_files_come_back_and_little_changes_cost_little(fast_root):
    async def run():
        blobs = Blobs()
        async with opened(blobs=blobs, sandbox="none", root=fast_root) as workspace:
            for number in range(10_000):
                folder = os.path.join(workspace.path, f"d{number % 100}")
                os.makedirs(folder, exist_ok=True)
                with open(os.path.join(folder, f"f{number}"), "w") as file:
                    file.write(f"content of file {number}")
            workspace._tree = None
            await workspace.snapshot()
            stored = sum(blobs.stored)
            await workspace.write_file("d5/f5", "changed")
            state = await workspace.snapshot()
            before = contents(workspace.path)
            added = sum(blobs.stored) - stored
        other, after = await brought_back(state, blobs, sandbox="none", root=fast_root)
        await other.close()
        return before, after, added, len(state)

    before, after, added, size = asyncio.run(run())
    assert after == before
    assert len(after) == 10_100
    assert added == len("changed")
    assert size < 300


# --- what is damaged


def damaged(change) -> None:
    async def run():
        blobs = Blobs()
        async with opened({"f": "x" * 100, "g": "y" * (PART_BYTES + 1)}, blobs=blobs) as workspace:
            state = await workspace.snapshot()
        state = change(state, blobs) or state
        other = Workspace()
        other.blobs = blobs
        try:
            await other.restore(state)
        finally:
            await other.close()

    asyncio.run(run())


@pytest.mark.parametrize("length", [100, PART_BYTES, 1])
def test_a_content_that_is_not_the_one_that_was_stored_is_found(length):
    def change(_, blobs):
        (digest,) = (key for key, body in blobs.kept.items() if len(body) == length)
        blobs.kept[digest] = b"z" * length

    with pytest.raises(EnvironmentBroken, match=r"content of b'[fg]' is damaged"):
        damaged(change)


@pytest.mark.parametrize("state", [b"x", b"nothing", b"\x80", manifest.zlib.compress(b"\xc1")])
def test_what_is_no_snapshot_is_refused(state):
    with pytest.raises(EnvironmentBroken, match="not a snapshot of a workspace"):
        damaged(lambda *_: state)


@pytest.mark.parametrize("path", [b"../f", b"/etc/f", b"a//b", b"", b"a/.", b"a\0b"])
def test_a_snapshot_cannot_name_what_is_outside(path):
    state = manifest.encode_manifest([(path, manifest.ManifestEntry(0o644, b"d" * 16))])
    with pytest.raises(EnvironmentBroken, match="not a place in a workspace"):
        damaged(lambda *_: state)


def test_a_snapshot_cannot_write_through_a_link(tmp_path):
    kept = {
        b"a": manifest.ManifestEntry(0o777, target=os.fsencode(tmp_path)),
        b"a/f": manifest.ManifestEntry(0o644, b"d" * 16),
    }
    with pytest.raises(OSError, match="No such file"):
        damaged(lambda *_: manifest.encode_manifest(kept.items()))
    assert not list(tmp_path.iterdir())


def test_a_snapshot_of_a_newer_version_is_refused(monkeypatch):
    monkeypatch.setattr(manifest, "VERSION", 2)
    state = manifest.encode_manifest([])
    monkeypatch.undo()
    with pytest.raises(EnvironmentBroken, match="version 2 was written by another Holdfast"):
        damaged(lambda *_: state)


@both
def test_reset_and_restore_begin_anew(sandbox):
    async def run():
        async with opened({"a": "1"}, sandbox=sandbox) as workspace:
            await workspace.shell("echo 2 > a; echo 3 > b; mkdir -m 555 c")
            state = await workspace.snapshot()
            first = workspace.path
            await workspace.reset(seed=0)
            fresh = await workspace.shell("cat *")
            assert not os.path.exists(first)
            await workspace.restore(state)
            return fresh, await workspace.shell("cat a b")

    assert asyncio.run(run()) == ("1\n[exit code 0]", "2\n3\n[exit code 0]")


@both
def test_closing_removes_everything_there_is(sandbox):
    async def run():
        async with opened(sandbox=sandbox) as workspace:
            await workspace.shell("mkdir -p a/b; touch a/b/c; chmod 000 a/b a; chmod 555 .")
            place = os.path.dirname(workspace.path)
        assert not os.path.exists(place)

    asyncio.run(run())
