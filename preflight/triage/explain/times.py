"""When a line was written, in the forms that torch, NCCL, Python's logging, vLLM and Slurm use."""

from __future__ import annotations

import re

_GLOG = re.compile(r"\b[IWEFC](\d{1,2})(\d\d) (\d\d):(\d\d):(\d\d(?:\.\d+)?)")
_SHORT = re.compile(r"\b(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d(?:[.,]\d+)?) \[?[\w/.]+\.py:\d")
_ISO = re.compile(r"\b(?:19|20)\d\d[-/](\d\d)[-/](\d\d)[T _](\d\d):(\d\d):(\d\d(?:[.,]\d+)?)")


def time_of(text: str) -> tuple[float, ...] | None:
    """(month, day, seconds of the day), the greatest common form; None where none is told.

    No year: torch's own prefix has none.
    """
    found = _GLOG.search(text) or _ISO.search(text) or _SHORT.search(text)
    if found is None:
        return None
    month, day, hour, minute, second = (float(each.replace(",", ".")) for each in found.groups())
    return (month, day, hour * 3600 + minute * 60 + second)
