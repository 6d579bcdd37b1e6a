"""Stands in for `vllm.entrypoints.openai.api_server`: a server, an engine that it spawns, a worker
that the engine forks, and shared memory between them, as vLLM 0.32 has them. It samples nonsense.

`STAND_IN` in the environment says what goes wrong: it never gets ready (`waits`), cannot load its
model (`fails`), or ends at its first request (`ends`), in the words of vLLM 0.32.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import sys
import time
from multiprocessing import shared_memory
from pathlib import Path

from holdfast.testing.fake_engine import process
from holdfast.testing.fake_engine.generation import FakeGeneration
from holdfast.testing.fake_engine.options import FakeOptions
from holdfast.testing.fake_engine.request import FakeRequest
from holdfast.testing.fake_engine.server import FakeServer

FAULT, RECORD = "STAND_IN", "STAND_IN_RECORD"
"""Environment variables: what goes wrong, and the file into which it writes how it was started."""
FAILURE = """\
(EngineCore pid=7) ERROR 11-18 19:00:00 [core.py:1100] EngineCore failed to start.
(EngineCore pid=7) ERROR 11-18 19:00:00 [core.py:1100] Traceback (most recent call last):
(EngineCore pid=7) ERROR 11-18 19:00:00 [core.py:1100] ValueError: No weights in /models/broken
(APIServer pid=6) Traceback (most recent call last):
(APIServer pid=6) RuntimeError: Engine core initialization failed. See root cause above.
"""
DEATH = """\
(Worker pid=8) ERROR 11-20 01:00:53 [multiproc_executor.py:1063] Traceback (most recent call last):
(Worker pid=8) ERROR 11-20 01:00:53 [multiproc_executor.py:1063] RuntimeError: head_dim=16
"""


class MortalServer(FakeServer):
    """Ends at its first request."""

    def _generation(self, job: FakeRequest) -> FakeGeneration:
        print(DEATH, end="", file=sys.stderr, flush=True)
        os._exit(1)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("model", "served-model-name", "host"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--port", type=int)
    args, more = parser.parse_known_args()
    (core := multiprocessing.get_context("spawn").Process(target=run_engine)).start()
    if record := os.environ.get(RECORD):
        written = {"pids": [os.getpid(), core.pid], "model": args.model, "more": more}
        Path(record).write_text(json.dumps(written))
    print("(APIServer pid=6) INFO 11-18 19:00:00 [serve.py:1] Loading model weights", flush=True)
    if os.environ.get(FAULT) == "fails":
        print(FAILURE, end="", file=sys.stderr, flush=True)
        os._exit(1)  # As vLLM does, it leaves its engine behind.
    if os.environ.get(FAULT) == "waits":
        time.sleep(600)
    options = FakeOptions(args.served_model_name, dialect="vllm-scale-out", max_model_len=2048)
    kind = MortalServer if os.environ.get(FAULT) == "ends" else FakeServer
    asyncio.run(process.serve(kind(options), port=args.port, parent=None))


def run_engine() -> None:
    kept = shared_memory.SharedMemory(create=True, size=4096)
    multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,)).start()
    time.sleep(600)
    kept.close()
