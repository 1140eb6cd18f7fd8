"""How long the smallest kernel takes from call to result: a slow CPU or driver shows here first."""

from __future__ import annotations

from .bench import Bench, reading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def measure(bench: Bench, how: dict[str, Any]) -> list[dict[str, Any]]:
    """Microseconds of launching and waiting; each sample is the median of many."""
    number = bench.torch.zeros(1, device=bench.device)

    def once() -> None:
        number.add_(1)

    for _ in range(how["launches"]):
        once()
    samples = []
    for _ in range(how["samples"]):
        each = sorted(bench.seconds(once, 1) for _ in range(how["launches"]))
        samples.append(each[len(each) // 2] * 1e6)
    return [reading("launch_us", samples)]
