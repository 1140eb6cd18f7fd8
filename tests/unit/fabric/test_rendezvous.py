"""torchrun's rendezvous at our pace, with the torch that is here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

_PAYLOAD = Path(__file__).parents[3] / "preflight" / "payload"
_THREE_MEET = """
import inspect, json, sys, threading, time
from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous import dynamic_rendezvous
from torch.distributed.elastic.rendezvous.api import RendezvousParameters
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend

sys.path.append(sys.argv[1])
from sweep import rendezvous
rendezvous.hasten(dynamic_rendezvous)
sleep, sleeps, memories, ranks = time.sleep, [], [], []
time.sleep = lambda seconds: sleeps.append(seconds) or sleep(seconds)
inspect.stack = lambda *_: sys.exit("it reads the source of all frames")
server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

def meet(number):
    wanted = RendezvousParameters(
        "c10d", f"127.0.0.1:{server.port}", "test", 3, 3, local_addr="127.0.0.1", is_host="false"
    )
    backend, store = create_backend(wanted)
    handler = dynamic_rendezvous.create_handler(store, backend, wanted)
    memories.append(handler._state_holder._cache_duration)
    sleep(number / 4)
    info = handler.next_rendezvous()
    ranks.append((info.rank, info.world_size))

threads = [threading.Thread(target=meet, args=(number,)) for number in range(3)]
for each in threads: each.start()
for each in threads: each.join()
print(json.dumps({"ranks": sorted(ranks), "longest_s": max(sleeps), "memories": memories}))
"""


def test_nodes_that_meet_look_for_the_last_one_many_times_a_second() -> None:
    """Torch still has the names that set its pace, else a launch would take seconds more unseen."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _THREE_MEET, str(_PAYLOAD)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["ranks"] == [[0, 3], [1, 3], [2, 3]]
    assert found["longest_s"] <= 0.1
    assert found["memories"] == [0, 0, 0]
