"""When something was, by the one clock that nobody sets: seconds since the boot, and which boot."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from msgspec import Struct

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class Moment(Struct, frozen=True):
    """As `now` returns it; the default is of a boot that is unknown."""

    boot_id: str = ""
    up_s: float = 0.0

    def age_s(self) -> float | None:
        """Seconds since then; None where that was before a reboot."""
        here = now()
        return here.up_s - self.up_s if here.boot_id == self.boot_id else None

    def least_age_s(self) -> float:
        """The same; where that was before a reboot, seconds since that."""
        age_s = self.age_s()
        return now().up_s if age_s is None else age_s


def now() -> Moment:
    """Return the moment that it is."""
    try:
        boot_id = _BOOT_ID.read_text().strip()
    except OSError:
        boot_id = ""
    return Moment(boot_id, time.clock_gettime(time.CLOCK_BOOTTIME))
