"""Where the commands of a node find its login: sockets that nobody else may open, gone with us."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from preflight.transport.protocol import ReachError
from preflight.trust import who_may_change

LONGEST: Final = 104
"""Bytes of a Unix socket's path on the meanest system, its final NUL included."""

_ADDED: Final = len("/65535") + len(".0123456789abcdef") + 1
"""What comes behind the folder: our number, ssh's random ending while it binds, the NUL."""

_WATCH: Final = """
read -r _
for socket in "$0"/*; do
    [ -S "$socket" ] && ssh -F none -o ProxyCommand=false -S "$socket" -O exit node 2>/dev/null
done
rm -rf "$0"
"""
"""Ends every login as soon as the process that holds its input is gone, however that ended."""

LEAVE_S: Final = 5.0

_TEMPORARY: Final = (tempfile.gettempdir(), "/tmp")  # noqa: S108  mkdtemp makes a folder of ours


class Sockets:
    """A folder of mode 0700 with an unpredictable name, and its guard that outlives a SIGKILL."""

    def __init__(self) -> None:
        self.folder = _private_folder()
        self._numbers = itertools.count()
        self._guard = subprocess.Popen(
            ["sh", "-c", _WATCH, str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def new(self) -> Path:
        """Return the path of a socket that does not exist yet."""
        return self.folder / str(next(self._numbers))

    def close(self) -> None:
        """Remove the folder; logins that are still there lose their sockets. Never raises."""
        with suppress(OSError):
            if self._guard.stdin is not None:
                self._guard.stdin.close()
        try:
            self._guard.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def _private_folder() -> Path:
    troubles = []
    for base in dict.fromkeys((os.environ.get("XDG_RUNTIME_DIR", ""), *_TEMPORARY)):
        if not base.startswith("/"):
            continue
        try:
            folder = Path(tempfile.mkdtemp(prefix="preflight-", dir=base))
        except OSError as error:
            troubles.append(f"{base}: {error.strerror}")
            continue
        trouble = "" if os.geteuid() else who_may_change(folder)
        if len(os.fsencode(folder)) + _ADDED > LONGEST or not str(folder).isprintable():
            trouble = "its path is too long for a socket"
        if not trouble:
            return folder
        folder.rmdir()
        troubles.append(f"{base}: {trouble}")
    raise ReachError(
        "route",
        f"there is no folder for ssh's sockets ({'; '.join(troubles)})",
        "set TMPDIR to a short path that this login may write to",
    )
