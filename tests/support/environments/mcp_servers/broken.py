"""Servers that do not work. `python broken.py silent | stubborn | leaving`"""

import os
import signal
import subprocess
import sys
import time


def silent():
    """Never answers, but ends when its input does."""
    sys.stderr.write("I am listening\n")
    sys.stderr.flush()
    for _ in sys.stdin:
        pass


def stubborn():
    """Never answers, and ends for nobody; nor does its child."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open(sys.argv[2], "w") as file:
        file.write(f"{os.getpid()} {child.pid}")
    time.sleep(600)


def leaving():
    """Ends at once, with words."""
    sys.stderr.write(f"no database at {sys.argv[2:]} for key {os.environ.get('BANK_KEY')}\n")
    sys.exit(3)


if __name__ == "__main__":
    {"silent": silent, "stubborn": stubborn, "leaving": leaving}[sys.argv[1]]()
