"""Forwarding: a port in a world that leads to a Unix socket, for agents that only know URLs.

A world without a network has a loopback interface of its own. A program in the world listens there,
and passes each connection on to a socket of this machine that is mounted into the world. The
program is written in the first of `LANGUAGES` that the image has.
"""

from holdfast.worlds.contract.failures import WorldRefused
from holdfast.worlds.contract.world import World

FOLDER = "/run/holdfast"
"""Where the socket's folder is mounted in a world."""
SOCKET = "gateway.sock"
PORT = 4777
ADDRESS = f"http://127.0.0.1:{PORT}"
LANGUAGES = ("python3", "node", "perl")

_PYTHON = """
import os, socket, threading
server = socket.create_server(("127.0.0.1", PORT), backlog=128)
if os.fork(): os._exit(0)
os.setsid()
for number in range(3): os.dup2(os.open("/dev/null", os.O_RDWR), number)
def pump(source, target):
    try:
        while part := source.recv(65536): target.sendall(part)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        for end in (source, target):
            try: end.shutdown(socket.SHUT_RDWR)
            except OSError: pass
while True:
    client = server.accept()[0]
    inner = socket.socket(socket.AF_UNIX)
    try: inner.connect("PATH")
    except OSError:
        client.close()
        continue
    for pair in ((client, inner), (inner, client)):
        threading.Thread(target=pump, args=pair, daemon=True).start()
"""
_NODE = """
const net = require("net");
if (process.argv[1] !== "serve") {
    const { spawn } = require("child_process");
    const code = process.execArgv[1];
    const child = spawn(process.execPath, ["-e", code, "serve"],
        { detached: true, stdio: ["ignore", "pipe", "ignore"] });
    child.stdout.once("data", () => process.exit(0));
    child.once("exit", () => process.exit(1));
} else {
    net.createServer({ allowHalfOpen: true }, client => {
        const inner = net.connect({ path: "PATH", allowHalfOpen: true });
        client.on("error", () => inner.destroy());
        inner.on("error", () => client.destroy());
        client.pipe(inner).pipe(client);
    }).listen(PORT, "127.0.0.1", 128, () => process.stdout.write("ready"));
}
"""
_PERL = """
use IO::Socket::INET; use IO::Socket::UNIX; use IO::Select;
$SIG{CHLD} = $SIG{PIPE} = "IGNORE";
my $server = IO::Socket::INET->new(LocalAddr => "127.0.0.1", LocalPort => PORT, Listen => 128,
    ReuseAddr => 1) or die $!;
exit if fork;
open STDIN, "</dev/null"; open STDOUT, ">/dev/null"; open STDERR, ">/dev/null";
while (1) {
    my $client = $server->accept or next;
    next if fork;
    my $inner = IO::Socket::UNIX->new(Peer => "PATH") or exit;
    my $open = IO::Select->new($client, $inner);
    while ($open->count) {
        for my $from ($open->can_read) {
            my $to = $from == $client ? $inner : $client;
            if (sysread $from, my $part, 65536) {
                for (my $at = 0; $at < length $part;) {
                    $at += syswrite($to, $part, 65536, $at) || exit;
                }
            } else { $open->remove($from); shutdown $to, 1 }
        }
    }
    exit;
}
"""
_START = """
if command -v python3 >/dev/null; then exec python3 -c "$1"; fi
if command -v node >/dev/null; then exec node -e "$2"; fi
if command -v perl >/dev/null; then exec perl -e "$3"; fi
exit 127"""


async def forward(world: World) -> None:
    """Starts the program that makes the mounted socket reachable at `ADDRESS` in the world. Returns
    when it listens. Raises `WorldRefused` if it cannot be started."""
    texts = (
        text.replace("PATH", f"{FOLDER}/{SOCKET}").replace("PORT", str(PORT))
        for text in (_PYTHON, _NODE, _PERL)
    )
    result = await world.exec(["/bin/sh", "-c", _START, "sh", *texts], timeout=60)
    if result.exit_code == 127:
        raise WorldRefused(
            "the agent cannot reach the gateway from its container: the image has none of "
            + ", ".join(LANGUAGES)
        )
    if not result.ok:
        raise WorldRefused(
            "the agent cannot reach the gateway from its container: " + result.output.strip()[-300:]
        )
