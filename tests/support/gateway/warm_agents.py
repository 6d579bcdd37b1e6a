"""Agent programs on large libraries, without the imports that take longer than they do.

`command` is what starts such a program. What it names is a small process that stands for the agent:
a server, which has the libraries, forks the agent, with this process's streams, folder and
variables. It ends as the agent ended; once it is gone, however that came, the agent is killed.

Run as a program it is that process, or with `--serve` the server.
"""

import json
import os
import signal
import socket
import sys

LIBRARIES = {
    "anthropic_loop": "anthropic",
    "langgraph_loop": "langchain_openai langgraph.prebuilt langgraph.graph",
    "openai_agents_loop": "agents",
    "openai_loop": "openai",
    "parallel_agents": "openai",
    "pydantic_ai_loop": "pydantic_ai pydantic_ai.models.openai",
    "responses_loop": "openai",
}
"""What a program imports. The server imports it when it is first asked for."""
ADDRESS = "WARM_AGENTS"
MAX_ORDER = 1 << 20


def command(program: str, *args: str) -> list[str]:
    """What starts a program of `agent_programs`, here and in a process that this one starts."""
    from support.paths import AGENT_PROGRAMS

    path = str(AGENT_PROGRAMS / f"{program}.py")
    if program not in LIBRARIES:
        return [sys.executable, path, *args]
    start()
    return [sys.executable, "-I", "-S", __file__, os.environ[ADDRESS], path, *args]


def start() -> None:
    """Starts the server if there is none yet; processes that this one starts use the same."""
    if ADDRESS in os.environ:
        return
    import atexit
    import subprocess
    import tempfile

    folder = tempfile.TemporaryDirectory(prefix="warm-agents-")
    os.environ[ADDRESS] = os.path.join(folder.name, "socket")
    server = subprocess.Popen(
        [sys.executable, __file__, "--serve", os.environ[ADDRESS]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert server.stdout.readline() == b"ready\n"

    def close() -> None:
        del os.environ[ADDRESS]
        server.communicate()
        folder.cleanup()

    atexit.register(close)


# --- the process that stands for the agent


def stand_in(address: str, arguments: list[str]) -> None:
    order = {"words": arguments, "cwd": os.getcwd(), "env": dict(os.environ)}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(address)
        socket.send_fds(connection, [json.dumps(order).encode()], [0, 1, 2])
        status = int(connection.recv(16))
    if os.WIFSIGNALED(status):
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status))


# --- the server


def serve(address: str) -> None:
    import select

    del sys.path[0]  # This file's neighbours are no libraries.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Nobody asks how those that watch have ended.
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(address)
        listening.listen(64)
        os.write(1, b"ready\n")
        while True:
            ready, _, _ = select.select([0, listening], [], [])
            if 0 in ready:
                return  # Whoever started it is gone.
            connection, _ = listening.accept()
            body, fds, _, _ = socket.recv_fds(connection, MAX_ORDER, 3)
            order = json.loads(body)
            _import(order["words"][0])
            if not os.fork():
                listening.close()
                _watch(connection, order, fds)
            for fd in (*fds, connection.detach()):
                os.close(fd)


def _import(path: str) -> None:
    from importlib import import_module

    for module in LIBRARIES[os.path.basename(path).removesuffix(".py")].split():
        import_module(module)


def _watch(connection: socket.socket, order: dict, fds: list[int]) -> None:
    """Until the agent ends, or the process that stands for it does."""
    import select

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    agent = os.fork()
    if not agent:
        connection.close()
        _become(order, fds)
    watched = os.pidfd_open(agent)
    ready, _, _ = select.select([watched, connection], [], [])
    if watched not in ready:
        os.kill(agent, signal.SIGKILL)
    _, status = os.waitpid(agent, 0)
    if watched in ready:
        connection.send(str(status).encode())
    os._exit(0)


def _become(order: dict, fds: list[int]) -> None:
    import runpy
    import traceback

    os.setsid()
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    sys.argv = order["words"]
    sys.path.insert(0, os.path.dirname(sys.argv[0]))
    status = 1
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve(sys.argv[2])
    else:
        stand_in(sys.argv[1], sys.argv[2:])
