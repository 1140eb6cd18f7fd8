"""Bounded types of the values that a node may send, and one error for bytes that are none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from msgspec import DecodeError, Meta

from preflight.errors import WireError

Text = Annotated[str, Meta(max_length=4096)]
Line = Annotated[str, Meta(max_length=512)]
_CODE = r"\x00-\x1f\x7f-\x9f;|&$`<>()'\"\\*?{}\[\]!#~"
"""Characters with a meaning to a shell or a terminal."""
Device = Annotated[str, Meta(pattern=rf"^[^{_CODE}]{{0,64}}\Z")]
"""A device's name, or a word of its driver: it is printed in commands for a person to type."""
HostName = Annotated[str, Meta(pattern=rf"^[^{_CODE}]{{0,255}}\Z")]
Count = Annotated[int, Meta(ge=0, le=2**53)]
"""Integers that a float, and so Prometheus, holds exactly."""
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
"""Any 64-bit number: thousands of larger ones can share one hash, which stalls a dict of them."""
Index = Annotated[int, Meta(ge=0, le=65535)]
Seconds = Annotated[float, Meta(ge=0, le=1e12)]


@contextmanager
def wire_errors(subject: str) -> Iterator[None]:
    """Raise WireError, `subject` and the reason in one line, for bytes that cannot be decoded."""
    try:
        yield
    except (DecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = str(error).encode("ascii", "replace").decode()[:200]
        raise WireError(f"{subject}: {reason}") from error


def device_name(text: str) -> str:
    """Return a device's name from a pasted text, with _ for each character not allowed in one."""
    printable = "".join(char if char.isprintable() else "_" for char in text[:64])
    return re.sub(f"[{_CODE}]", "_", printable)
