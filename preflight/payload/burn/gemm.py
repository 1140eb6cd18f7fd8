"""How fast a device multiplies matrices in bf16: what training spends most of its time with."""

from __future__ import annotations

from .bench import Bench, reading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def measure(bench: Bench, how: dict[str, Any]) -> list[dict[str, Any]]:
    """TFLOPS of an n x n x n product of random numbers, 2 n^3 operations each."""
    torch, n = bench.torch, how["n"]
    torch.manual_seed(1)  # numbers decide how much power a product takes: the same for all
    one = torch.randn(n, n, device=bench.device).to(torch.bfloat16)
    other = torch.randn(n, n, device=bench.device).to(torch.bfloat16)
    out = torch.empty_like(one)
    seconds = bench.samples(lambda: torch.mm(one, other, out=out), how)
    return [reading("gemm_tflops", [2 * n**3 / each / 1e12 for each in seconds])]
