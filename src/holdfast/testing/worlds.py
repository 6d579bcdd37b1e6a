"""The conformance suite of world providers.

Subclass `WorldConformance` in a test module, name the subclass `Test…`, and define `provider` and
`spec`. pytest then runs every test of the suite. The image needs /bin/sh, and the usual commands of
a small system.
"""

import asyncio
from collections.abc import Awaitable, Callable
from secrets import token_hex

from holdfast.worlds.contract.failures import SnapshotGone, WorldGone
from holdfast.worlds.contract.spec import WorldSpec
from holdfast.worlds.contract.world import World, WorldLabel, WorldProvider, fork

Body = Callable[[WorldProvider, World], Awaitable[None]]


class WorldConformance:
    """The tests that every provider of worlds must pass."""

    spec: WorldSpec

    def provider(self) -> WorldProvider:
        raise NotImplementedError("return a new provider")

    def label(self, world: str = "") -> WorldLabel:
        """Returns the label of a world that only this test uses."""
        return WorldLabel(world=world or token_hex(6), journal=self._journal, run="run")

    def check(self, body: Body) -> None:
        """Runs the test `body` with one world, and checks that nothing is left afterwards."""
        self._journal = token_hex(6)
        asyncio.run(self._check(body))

    async def _check(self, body: Body) -> None:
        provider = self.provider()
        try:
            await provider.prepare(self.spec)
            await body(provider, await provider.create(self.spec, self.label()))
        finally:
            for info in await provider.worlds(journal=self._journal):
                await provider.destroy(info.handle)
            for info in await provider.snapshots(journal=self._journal):
                await provider.discard(info.handle)
            left = await provider.snapshots(journal=self._journal)
            await provider.close()
        assert not left, left

    # --- commands

    def test_a_command_gives_its_output_and_its_exit_code(self) -> None:
        async def body(_: WorldProvider, world: World) -> None:
            result = await world.exec("echo out; echo err >&2; echo again; exit 3")
            assert (result.exit_code, result.output) == (3, "out\nerr\nagain\n")
            assert not result.ok
            assert (await world.exec(["echo", "a  b", "$HOME"])).output == "a  b $HOME\n"

        self.check(body)

    def test_a_command_reads_its_input_to_the_end(self) -> None:
        async def body(_: WorldProvider, world: World) -> None:
            assert (await world.exec("cat", stdin=b"hello")).output == "hello"
            counted = await world.exec(["wc", "-c"], stdin=b"x" * 3_000_000)
            assert counted.output.strip() == "3000000"
            assert (await world.exec("cat; echo end")).output == "end\n"
            assert (await world.exec("exit 4", stdin=b"x" * 3_000_000)).exit_code == 4

        self.check(body)

    def test_a_command_has_the_variables_and_the_folder_of_its_call(self) -> None:
        async def body(_: WorldProvider, world: World) -> None:
            result = await world.exec("pwd; echo $WHO", env={"WHO": "me"}, cwd="/etc")
            assert result.output == "/etc\nme\n"

        self.check(body)

    def test_a_long_output_keeps_its_beginning_and_its_end(self) -> None:
        async def body(_: WorldProvider, world: World) -> None:
            result = await world.exec("echo first; yes | head -c 300000; echo last", output=1000)
            assert result.truncated
            assert result.output.startswith("first\n")
            assert result.output.endswith("last\n")
            assert len(result.output) < 2000

        self.check(body)

    def test_a_late_command_is_killed_with_its_processes(self) -> None:
        async def body(_: WorldProvider, world: World) -> None:
            late = await world.exec("echo begun; sleep 71 & sleep 72", timeout=0.5)
            assert (late.timed_out, late.ok, late.output) == (True, False, "begun\n")
            ended = await world.exec("cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '")
            assert "sleep 71" not in ended.output
            assert "sleep 72" not in ended.output

        self.check(body)

    def test_a_cancelled_command_is_killed_with_its_processes(self) -> None:
        async def body(_: WorldProvider, world: World) -> None:
            running = asyncio.create_task(world.exec("touch /begun; sleep 73 & sleep 74"))
            await world.exec("while [ ! -e /begun ]; do sleep 0.1; done")
            running.cancel()
            await asyncio.wait({running})
            assert running.cancelled()
            listing = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '"
            await world.exec(f"while {listing} | grep -q '[s]leep 7[34]'; do sleep 0.1; done")
            ended = await world.exec(listing)
            assert "sleep 73" not in ended.output
            assert "sleep 74" not in ended.output

        self.check(body)

    def test_files_and_background_processes_outlive_a_command(self) -> None:
        async def body(_: WorldProvider, world: World) -> None:
            await world.exec("(sleep 0.5; echo late > /file) >/dev/null 2>&1 &")
            result = await world.exec("while [ ! -s /file ]; do sleep 0.1; done; cat /file")
            assert result.output == "late\n"

        self.check(body)

    def test_commands_run_side_by_side(self) -> None:
        async def body(_: WorldProvider, world: World) -> None:
            wait = "while [ ! -e /go ]; do sleep 0.1; done; echo went"
            waiting = asyncio.create_task(world.exec(wait))
            await world.exec("touch /go")
            assert (await waiting).output == "went\n"

        self.check(body)

    # --- files

    def test_files_are_written_read_and_listed(self) -> None:
        async def body(_: WorldProvider, world: World) -> None:
            content = bytes(range(256)) * 5000
            await world.write("/work/new folder/it's.bin", content)
            await world.write("/work/run.sh", b"echo ran", mode=0o755)
            await world.write("/work/empty", b"")
            await world.exec("ln -s nowhere '/work/a\nlink'")
            assert await world.read("/work/new folder/it's.bin") == content
            assert await world.read("/work/empty") == b""
            assert (await world.exec("/work/run.sh || sh /work/run.sh")).output == "ran\n"
            names = [info.path for info in await world.files("/work")]
            assert names == ["a\nlink", "empty", "new folder", "run.sh"]
            link, empty, folder, script = await world.files("/work")
            assert (link.is_link, folder.is_folder, empty.size) == (True, True, 0)
            assert script.mode == 0o755

        self.check(body)

    def test_unusable_paths_say_why(self) -> None:
        async def body(_: WorldProvider, world: World) -> None:
            await world.write("/work/file", b"12345")
            await raises(FileNotFoundError, world.read("/nowhere"))
            await raises(FileNotFoundError, world.files("/nowhere"))
            await raises(IsADirectoryError, world.read("/work"))
            await raises(IsADirectoryError, world.write("/work", b""))
            await raises(NotADirectoryError, world.files("/work/file"))
            await raises(OSError, world.write("/work/file/below", b""))
            await raises(OSError, world.read("/work/file", most=4))

        self.check(body)

    # --- worlds

    def test_worlds_do_not_see_each_other(self) -> None:
        async def body(provider: WorldProvider, world: World) -> None:
            other = await provider.create(self.spec, self.label())
            await world.write("/mine", b"1")
            await raises(FileNotFoundError, other.read("/mine"))

        self.check(body)

    def test_creating_a_world_again_returns_the_same_world(self) -> None:
        async def body(provider: WorldProvider, _: World) -> None:
            label = self.label()
            first = await provider.create(self.spec, label)
            await first.write("/mine", b"1")
            again = await provider.create(self.spec, label)
            assert again.handle == first.handle
            assert await again.read("/mine") == b"1"

        self.check(body)

    def test_a_world_is_found_by_its_label(self) -> None:
        async def body(provider: WorldProvider, world: World) -> None:
            label = self.label()
            other = await provider.create(self.spec, label)
            everything = await provider.worlds(journal=label.journal)
            assert {info.handle for info in everything} == {world.handle, other.handle}
            (info,) = await provider.worlds(journal=label.journal, world=label.world)
            assert (info.handle, info.label, info.running) == (other.handle, label, True)
            assert await provider.worlds(journal="another") == []

        self.check(body)

    def test_a_world_can_be_attached_while_it_runs(self) -> None:
        async def body(provider: WorldProvider, world: World) -> None:
            await world.write("/mine", b"1")
            again = await provider.attach(world.handle)
            assert await again.read("/mine") == b"1"
            await raises(WorldGone, provider.attach("holdfast-nobody"))

        self.check(body)

    def test_a_destroyed_world_is_gone(self) -> None:
        async def body(provider: WorldProvider, world: World) -> None:
            await world.destroy()
            await world.destroy()
            await provider.destroy(world.handle)
            await raises(WorldGone, provider.attach(world.handle))
            await raises(WorldGone, world.exec("true"))
            await raises(WorldGone, world.write("/mine", b"1"))

        self.check(body)

    def test_it_is_known_what_a_world_has_used(self) -> None:
        async def body(_: WorldProvider, world: World) -> None:
            await world.exec("head -c 100000000 /dev/zero | wc -c")
            assert (await world.use()).cpu_seconds > 0

        self.check(body)

    # --- snapshots

    def test_a_snapshot_has_the_files_of_its_moment(self) -> None:
        async def body(provider: WorldProvider, world: World) -> None:
            await world.exec("mkdir /work && cd /work && echo 1 > a && ln -s a b && chmod 751 a")
            snapshot = await world.snapshot(token_hex(6))
            await world.exec("echo 2 > /work/a; rm /work/b")
            await world.destroy()
            back = await provider.restore(snapshot, self.spec, self.label())
            result = await back.exec("cd /work; cat b; stat -c %a a; readlink b")
            assert result.output == "1\n751\na\n"

        self.check_snapshots(body)

    def test_a_world_can_be_restored_again_and_again(self) -> None:
        async def body(provider: WorldProvider, world: World) -> None:
            for number in range(3):
                await world.exec(f"echo {number} >> /numbers")
                snapshot = await world.snapshot(token_hex(6))
                await world.destroy()
                world = await provider.restore(snapshot, self.spec, self.label())
            assert (await world.exec("cat /numbers")).output == "0\n1\n2\n"

        self.check_snapshots(body)

    def test_a_snapshot_is_found_by_its_label_and_given_back(self) -> None:
        async def body(provider: WorldProvider, world: World) -> None:
            snapshot = await world.snapshot(token_hex(6))
            (info,) = await provider.snapshots(journal=self._journal)
            assert info.handle == snapshot
            await provider.discard(snapshot)
            await provider.discard(snapshot)
            assert await provider.snapshots(journal=self._journal) == []
            await raises(SnapshotGone, provider.restore(snapshot, self.spec, self.label()))

        self.check_snapshots(body)

    def test_a_fork_has_the_files_and_its_own_future(self) -> None:
        async def body(provider: WorldProvider, world: World) -> None:
            await world.exec("echo common > /file")
            other = await fork(provider, world, self.spec, self.label())
            await other.exec("echo other >> /file")
            await world.exec("echo first >> /file")
            assert await other.read("/file") == b"common\nother\n"
            assert await world.read("/file") == b"common\nfirst\n"

        self.check_snapshots(body)

    def check_snapshots(self, body: Body) -> None:
        async def if_able(provider: WorldProvider, world: World) -> None:
            if provider.capabilities.snapshots:
                await body(provider, world)

        self.check(if_able)


async def raises(error: type[Exception], call: Awaitable[object]) -> None:
    """Checks that a call raises an error."""
    try:
        result = await call
    except error:
        return
    raise AssertionError(f"it returned {result!r:.200} instead of raising {error.__name__}")
