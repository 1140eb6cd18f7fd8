"""Sizes of what a node may say."""

from __future__ import annotations

import re
from typing import Annotated

from msgspec import Meta

Text = Annotated[str, Meta(max_length=4096)]
Line = Annotated[str, Meta(max_length=512)]
_CODE = r"\x00-\x1f\x7f-\x9f;|&$`<>()'\"\\*?{}\[\]!#~"
"""What a shell or a terminal would read as more than a letter of a name."""
Device = Annotated[str, Meta(pattern=rf"^[^{_CODE}]{{0,64}}\Z")]
"""A name of a device, or a word of its driver: it stands in commands that a person is to type."""
HostName = Annotated[str, Meta(pattern=rf"^[^{_CODE}]{{0,255}}\Z")]
Count = Annotated[int, Meta(ge=0, le=2**53)]
Whole = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
"""Any number of 64 bits: of larger ones thousands can have one hash, and a table of them no end."""
Index = Annotated[int, Meta(ge=0, le=65535)]
Seconds = Annotated[float, Meta(ge=0, le=1e12)]


def device_name(text: str) -> str:
    """Return what a pasted text calls a device, with _ for what no `Device` holds."""
    shown = "".join(char if char.isprintable() else "_" for char in text[:64])
    return re.sub(f"[{_CODE}]", "_", shown)
