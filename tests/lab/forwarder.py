# ruff: noqa: T201  # its output is how the lab follows it
"""A bad cable: carries frames between two interfaces and holds some of them up.

Run by `tests.lab.wire` as `forwarder.py A B PER_MILLE LOW_MS HIGH_MS`; says "up" when it carries
frames, and ends when its standard input does. A held frame holds those behind it, as a retraining
link would.
"""

from __future__ import annotations

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


def main(near: str, far: str, per_mille: int, low_ms: float, high_ms: float) -> None:
    """Carry frames both ways until standard input ends."""
    one, two = _open(near), _open(far)
    ways = {one.fileno(): (one, two), two.fileno(): (two, one)}
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
            if random.randrange(1000) < per_mille:  # noqa: S311  # chance, not a secret
                time.sleep(random.uniform(low_ms, high_ms) / 1000)  # noqa: S311  # the same
            with suppress(OSError):  # a full queue or a card that goes down loses the frame
                target.send(frame)


def _open(interface: str) -> socket.socket:
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_EVERYTHING))
    end.bind((interface, _EVERYTHING))
    return end


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), float(sys.argv[5]))
