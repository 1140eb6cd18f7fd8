"""Whether two buffers hold the same bits: asked after every operation, so it must cost little.

torch.equal goes through a host's 4 MiB in 0.7 ms, libc in 0.1 ms; and every all-reduce of a healthy
pair is compared.
"""

from __future__ import annotations

import ctypes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_memcmp.restype = ctypes.c_int


def same(one: Any, other: Any) -> bool:
    """Compare two contiguous tensors of one shape and type, in the memory of the host."""
    size_bytes = one.numel() * one.element_size()
    return bool(_memcmp(one.data_ptr(), other.data_ptr(), size_bytes) == 0)
