"""Documents of nodes are decoded in many threads at once."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Thread switches as often as can be: the crash needs two threads within microseconds.
SCRIPT = """
import sys, threading
from preflight.errors import WireError
from preflight.facts.model import Facts, NodeLook, Ports, RasLook, decode_document

sys.setswitchinterval(1e-6)
ready = threading.Barrier(16)

def decode(kind):
    ready.wait()
    for _ in range(20):
        try:
            decode_document(kind, b'{"nonce": "x", "gpus": [{"index": 0}], "nics": [{}]}', "x")
        except WireError:
            pass

kinds = (Facts, Ports, NodeLook) * 5 + (RasLook,)
threads = [threading.Thread(target=decode, args=(kind,)) for kind in kinds]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


@pytest.mark.slow
def test_first_answers_that_come_at_once_crash_nothing() -> None:
    """The first documents of several kinds are decoded in 16 threads of a fresh process."""
    for _ in range(3):
        ended = subprocess.run(
            [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False
        )
        assert (ended.returncode, ended.stderr) == (0, "")
