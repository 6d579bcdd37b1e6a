"""What all tests share: the exhaustive ones run only when asked for."""

import asyncio
import fcntl
import gc
import inspect
import os
import signal
import subprocess
from collections.abc import Generator, Iterator
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, settings

from holdfast.embedded import child_process
from holdfast.testing.fake_engine import handle
from support import fork_server

pytest_plugins = ["pytester"]  # Only here: pytest takes it from no other conftest.

settings.register_profile(
    "default",
    deadline=None,  # Time on a busy machine is no property of the code.
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
    database=None,
)
settings.load_profile("default")

# What a machine says of itself changes what tools print, pytest among them, and where requests to
# this machine go. No test is about that, unless it says so itself.
for name in (
    *("CI", "BUILD_NUMBER", "GITHUB_ACTIONS", "PYTEST_ADDOPTS"),
    *("FORCE_COLOR", "NO_COLOR", "PY_COLORS", "COLUMNS", "LINES"),
    *("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"),
):
    os.environ.pop(name, None)

# Several tests run at once: threads of torch that wait for a core cost more than they give.
os.environ.setdefault("OMP_NUM_THREADS", "1")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # What a shell starts in the background ignores it, and so would every process that tests start
    # and then interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("HOLDFAST_EXHAUSTIVE") == "1":
        return
    skip = pytest.mark.skip(reason="exhaustive: set HOLDFAST_EXHAUSTIVE=1")
    for item in items:
        if "exhaustive" in item.keywords:
            item.add_marker(skip)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a test that is a coroutine function in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Each worker collects every file. The one that comes to a file first compiles it, and the
    others, who would do the same at the same moment, wait for that and read what it wrote."""
    if not isinstance(collector, pytest.Module):
        return (yield)
    with collector.path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(file, fcntl.LOCK_SH)
        return (yield)


@pytest.fixture(scope="module", autouse=True)
def _small_collections() -> None:
    """Many tests collect garbage to see what is left of a run. What is there before a file's first
    test, torch and its like, is nobody's garbage: from now on no collection looks at it."""
    gc.collect()  # Of what the file before left: all the rest is frozen since then.
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Logs and notes of commits that no test has asked for stay out of the user's own folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _forked_engines() -> Iterator[None]:
    """An engine is a process of its own, and a fork of one that has imported what it needs."""
    with pytest.MonkeyPatch.context() as patch:
        for module, popen in (
            (handle, fork_server.Popen),
            (child_process, fork_server.TrainingPopen),
        ):
            forking = SimpleNamespace(**{**vars(subprocess), "Popen": popen})
            patch.setattr(module, "subprocess", forking)
        yield
    fork_server.close()
