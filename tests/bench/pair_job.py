"""What one would write without preflight: a torchrun script that times all-reduces of two nodes.

Its arguments are the ladder: `SIZE_BYTES:WARMUP:ITERATIONS ...`, a soak with `:SECONDS` behind it
after which it stops. Rank 0 prints median times, us.
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
        size_bytes, warmup, iterations, *most_s = map(float, rung.split(":"))
        buffer = torch.ones(max(1, int(size_bytes) // 4), dtype=torch.int32)
        for _ in range(int(warmup)):
            dist.all_reduce(buffer)
        times_us = []
        for _ in range(_agreed(buffer, int(iterations), most_s)):
            began = time.perf_counter()
            dist.all_reduce(buffer)
            times_us.append((time.perf_counter() - began) * 1e6)
        medians_us[int(size_bytes)] = round(statistics.median(times_us), 1)
    if dist.get_rank() == 0:
        sys.stdout.write(json.dumps(medians_us) + "\n")
    dist.destroy_process_group()


def _agreed(buffer: torch.Tensor, iterations: int, most_s: list[float]) -> int:
    """So many as both ranks have time for, by one that is timed."""
    if not most_s:
        return iterations
    began = time.perf_counter()
    dist.all_reduce(buffer)
    fitting = torch.tensor([int(most_s[0] / (time.perf_counter() - began))])
    dist.all_reduce(fitting, op=dist.ReduceOp.MIN)
    return max(1, min(iterations, int(fitting.item())))


if __name__ == "__main__":
    main()
