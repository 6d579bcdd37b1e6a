"""A way to PostgreSQL that a test can cut: what is sent meanwhile waits, as in a partition that is
healed, where TCP sends it again."""

import contextlib
import socket
import threading
from urllib.parse import parse_qs, unquote, urlsplit, urlunsplit

PORT = 5432


class CutNetwork:
    """A proxy at a host of ours, for as long as the block lasts. No connection is refused or ended
    while the network is cut: nobody learns of it but by waiting."""

    def __init__(self, url: str, host: str = "127.0.0.1"):
        self._server = _place_of(url)
        self._listener = socket.create_server((host, 0))
        self._whole = threading.Event()
        self._whole.set()
        self._sockets: list[socket.socket] = []
        self._held: dict[socket.socket, int] = {}

    def __enter__(self) -> "CutNetwork":
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._whole.set()
        for item in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                item.shutdown(socket.SHUT_RDWR)
            item.close()

    def url_of(self, url: str) -> str:
        """The same, through here."""
        parts = urlsplit(url)
        user = parts.netloc.rpartition("@")[0]
        host, port = self._listener.getsockname()
        at = f"{user}@" if user else ""
        return urlunsplit(parts._replace(netloc=f"{at}{host}:{port}", query=""))

    @property
    def waiting(self) -> int:
        """Bytes that were sent to the server and have not been passed on."""
        return sum(list(self._held.values()))

    def cut(self) -> None:
        self._whole.clear()

    def heal(self) -> None:
        self._whole.set()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = _connected(self._server)
                self._sockets += [client, server]
                self._held[client] = 0
                for ends in ((client, server), (server, client)):
                    threading.Thread(target=self._pass, args=ends, daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if source in self._held:
                    self._held[source] = len(data)
                self._whole.wait()
                target.sendall(data)
                if source in self._held:
                    self._held[source] = 0
        self._whole.wait()
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)


def _place_of(url: str) -> str | tuple[str, int]:
    """The path of its socket, or host and port."""
    parts = urlsplit(url)
    port = parts.port or PORT
    folder = parse_qs(parts.query).get("host", [""])[0]
    if folder:
        return f"{unquote(folder)}/.s.PGSQL.{port}"
    return parts.hostname or "127.0.0.1", port


def _connected(place: str | tuple[str, int]) -> socket.socket:
    if isinstance(place, tuple):
        return socket.create_connection(place)
    server = socket.socket(socket.AF_UNIX)
    server.connect(place)
    return server
