"""Programs named scontrol and sinfo that keep one node in files: real processes, no cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_SCONTROL = r"""#!/bin/sh
cd "${0%/*}" || exit 9
echo "$@" >>calls
/usr/bin/env | /bin/sed "s/=.*//" | /usr/bin/sort | /usr/bin/tr '\n' ' ' >environ
[ -e hangs ] && exec /bin/sleep 60
[ -e down ] && { echo "Unable to contact slurm controller (connect failure)" >&2; exit 1; }
[ "$1" = update ] && [ -e "refuses" ] && { echo "Invalid user id" >&2; exit 1; }
[ "$1" = update ] && /bin/mv waits began 2>/dev/null && until [ -e go ]; do /bin/sleep 0.05; done
case "$1 $2" in "show config")
  [ -e timeless ] || printf 'Configuration data as of %s\nX = 1\n' "$(/bin/cat now 2>/dev/null ||
    TZ=UTC /bin/date +%Y-%m-%dT%H:%M:%S)"; exit ;;
esac
case "$1 $3" in
  "show "*) printf 'NodeName=n\n   State=%s X=1\n   Partitions=gpu \n' "$(/bin/cat state)"
    [ -s reason ] && printf '   Reason=%s [root@2026-11-22T05:14:52]\n' "$(/bin/cat reason)" ;;
  *State=DRAIN) echo IDLE+DRAIN >state; echo "${4#Reason=}" >reason ;;
  *State=UNDRAIN) echo IDLE >state; : >reason ;;
esac
exit 0
"""
_SINFO = r"""#!/bin/sh
cd "${0%/*}" || exit 9
echo "sinfo $@" >>calls
case "$*" in *%R*) /bin/cat sizes; exit ;; esac
[ -e strange ] || echo "gpu041|Unknown|none"
case "$*" in *%E*) /bin/cat reasons ;; esac
"""


class FakeSlurm:
    """`folder` is for `slurm_bin`; the node is idle and in a partition of four."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        for name, text in (("scontrol", _SCONTROL), ("sinfo", _SINFO)):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        self.set("IDLE")
        self.write("sizes", "gpu 4\n")
        self.write("reasons", "")

    def write(self, name: str, text: str = "") -> None:
        """Change what it tells: `hangs`, `down`, `refuses`, `timeless`, `strange` are switches.

        With `waits` the next update begins (`began`), and goes on once there is `go`.
        """
        (self.folder / name).write_text(text)

    def set(self, state: str, reason: str = "") -> None:
        """Put the node into that state."""
        self.write("state", f"{state}\n")
        self.write("reason", f"{reason}\n" if reason else "")

    @property
    def seen(self) -> tuple[str, str]:
        """State and reason."""
        return tuple((self.folder / name).read_text().strip() for name in ("state", "reason"))  # type: ignore[return-value]

    @property
    def calls(self) -> list[str]:
        """The calls, first words only."""
        lines = (self.folder / "calls").read_text().splitlines()
        return [" ".join(line.split()[:2]) for line in lines]
