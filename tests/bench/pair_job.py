"""What one would write without preflight: a torchrun script that times all-reduces of two nodes.

Its arguments are the ladder: `SIZE_BYTES:WARMUP:ITERATIONS ...`. Rank 0 prints median times, us.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import torch
import torch.distributed as dist


def main() -> None:
    """Join, climb the ladder, say what was measured."""
    dist.init_process_group("gloo")
    medians_us: dict[int, float] = {}
    for rung in sys.argv[1:]:
        size_bytes, warmup, iterations = map(int, rung.split(":"))
        buffer = torch.ones(max(1, size_bytes // 4), dtype=torch.int32)
        for _ in range(warmup):
            dist.all_reduce(buffer)
        times_us = []
        for _ in range(iterations):
            began = time.perf_counter()
            dist.all_reduce(buffer)
            times_us.append((time.perf_counter() - began) * 1e6)
        medians_us[size_bytes] = round(statistics.median(times_us), 1)
    if dist.get_rank() == 0:
        sys.stdout.write(json.dumps(medians_us) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
