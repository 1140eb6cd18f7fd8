# ruff: noqa: T201  # its output is how the lab follows it
"""A bad cable: carries frames between two interfaces and holds some of them up.

Run by `tests.lab.wire` as `forwarder.py A B PER_MILLE LOW_MS HIGH_MS REST_MS`; says "up" when it
carries frames, and ends when its standard input does. A held frame holds those behind it, as a
retraining link would, and for REST_MS after it none is held.
"""

from __future__ import annotations

import os
import random
import select
import socket
import sys
import time
from contextlib import suppress

_STDIN = 0
_EVERYTHING = 3  # ETH_P_ALL
_OUTGOING = 4  # PACKET_OUTGOING: what we sent ourselves
_FRAME = 65536
_BUFFER = 16 << 20  # what comes in while a frame is held must not be lost: that is another fault
_URGENT = 10
_SO_RCVBUFFORCE = 33  # asm-generic/socket.h; past net.core.rmem_max, for root


def main(near: str, far: str, per_mille: int, hold_ms: tuple[float, float], rest_ms: float) -> None:
    """Carry frames both ways until standard input ends."""
    one, two = _open(near), _open(far)
    ways = {one.fileno(): (one, two), two.fileno(): (two, one)}
    with suppress(OSError):  # a wire waits for no CPU, where a busy machine lets us say so
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_URGENT))
    fit_until = 0.0
    print("up", flush=True)
    while True:
        ready, _, _ = select.select([_STDIN, *ways], [], [])
        if _STDIN in ready:
            return
        for number in ready:
            source, target = ways[number]
            frame, address = source.recvfrom(_FRAME)
            if address[2] == _OUTGOING:
                continue
            loose = random.randrange(1000) < per_mille  # noqa: S311  # chance, not a secret
            if loose and time.monotonic() >= fit_until:
                time.sleep(random.uniform(*hold_ms) / 1000)  # noqa: S311  # the same
                fit_until = time.monotonic() + rest_ms / 1000
            with suppress(OSError):  # a full queue or a card that goes down loses the frame
                target.send(frame)


def _open(interface: str) -> socket.socket:
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_EVERYTHING))
    end.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER)
    end.bind((interface, _EVERYTHING))
    return end


if __name__ == "__main__":
    low, high, rest = map(float, sys.argv[4:7])
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), (low, high), rest)
