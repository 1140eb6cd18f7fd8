"""An SSH forced command for nodes that must not run code sent to them.

    restrict,command="/opt/preflight/bin/python -I -m preflight.answer" ssh-ed25519 AAAA...

The controller works as usual. This command discards the code that it sends and runs the installed
payload instead; it refuses any other use of the key in one line. It imports the standard library
only, because it starts for every call.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

from preflight import __version__
from preflight.core.trust import NAMES_CODE

ENTRIES: Final = ("probe", "ports", "burn", "outputs", "stacks", "sweep")
WITH_TORCH: Final = ("burn", "sweep")
REFUSED: Final = 98
"""Exit status by which the controller recognises that this command refused it."""

BOOTED: Final = b"@preflight booted\n"
CUT_SHORT: Final = "the payload was cut short"
PAYLOAD: Final = Path(__file__).resolve().with_name("payload")
LONGEST_S, LARGEST, LONGEST_LINE = 86_400, 64 << 20, 64 << 10

_STARTER: Final = (
    "import sys; sys.path[:] = [sys.argv[1]] + [p for p in sys.path if p]; "
    "import start; start.main(sys.argv[2])"
)
_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_VERSION: Final = re.compile(r"""preflight_version = \\?["']([\w.+-]{1,40})""")
_SETTING: Final = re.compile(
    r"((?:NCCL|UCX|FI|OFI|RDMAV|IBV|MLX5)_\w+|GLOO_SOCKET_IFNAME|CUDA_DEVICE_ORDER)=([^/\s\x00-\x1f]*)"
)
"""A variable of the job that may be passed on, unless it is one that names a file or code."""

_DROPPED: Final = ("PYTHON", "LD_", "SSH_ORIGINAL_COMMAND")


class Call(NamedTuple):
    """What the controller asks for: an entry and a deadline; `size` bytes of code come first."""

    timeout_s: int
    size: int
    entry: str
    environ: dict[str, str]


class RefusedError(Exception):
    """The call is not preflight's, or not this version's; the text says which."""


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Serve one call, or refuse it. Never returns."""
    parser = argparse.ArgumentParser(prog="preflight.answer", description=__doc__)
    parser.add_argument("--sweep-python", default=sys.executable, help="a Python that has torch")
    arguments = parser.parse_args(argv)
    try:
        call = read_call(os.environ.get("SSH_ORIGINAL_COMMAND", ""))
        _serve(call, arguments.sweep_python)
    except RefusedError as refusal:
        os.write(2, f"preflight.answer: {refusal}\n".encode("ascii", "replace"))
    sys.exit(REFUSED)


def read_call(line: str) -> Call:
    """Parse the controller's command line; RefusedError if it is anything else.

    `timeout -k 2 SECONDS [env NAME=VALUE...] PYTHON... [-I] -c BOOT SIZE ENTRY`: only SECONDS,
    SIZE, ENTRY and the variables are used; no part of the line is ever run.
    """
    try:
        words = shlex.split(line) if len(line) <= LONGEST_LINE else []
    except ValueError:
        words = []
    if len(words) < 9 or words[:3] != ["timeout", "-k", "2"] or words[-4] != "-c":  # noqa: PLR2004  the words above
        raise RefusedError("this key serves preflight and nothing else")
    seconds, boot, size, entry = words[3], *words[-3:]
    valid = _NUMBER.fullmatch(seconds) and _NUMBER.fullmatch(size) and boot.startswith("exec(")
    if not valid or entry not in ENTRIES:
        raise RefusedError("this key serves preflight and nothing else")
    match = _VERSION.search(boot)
    if match is None or match[1] != __version__:
        raise RefusedError(
            f"preflight {__version__} is installed here, "
            f"{match[1] if match else 'another version'} asks"
        )
    if not 0 < int(seconds) <= LONGEST_S or int(size) > LARGEST:
        raise RefusedError("it asks for too much time, or sends too much")
    settings = (_SETTING.fullmatch(word) for word in words[4:-4] if not re.match(NAMES_CODE, word))
    environ = {setting[1]: setting[2] for setting in settings if setting and entry in WITH_TORCH}
    return Call(int(seconds), int(size), entry, environ)


def _serve(call: Call, sweep_python: str) -> None:
    """Discard the code that was sent, then exec the installed payload under the deadline."""
    signal.alarm(call.timeout_s)
    _discard(call.size)
    signal.alarm(0)
    os.write(1, BOOTED)
    # An entry that loads torch runs as the job does: `-I` would hide what its Python needs.
    python = [sweep_python] if call.entry in WITH_TORCH else [sys.executable, "-I"]
    limit = ["timeout", "-k", "2", str(call.timeout_s)]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(_DROPPED)}
    environ |= call.environ
    words = [*limit, *python, "-c", _STARTER, str(PAYLOAD), call.entry]
    try:
        os.execvpe(words[0], words, environ)  # noqa: S606  no shell is wanted
    except OSError as error:
        raise RefusedError(f"timeout cannot be run here: {error.strerror}") from error


def _discard(size: int) -> None:
    """Read exactly `size` bytes: the payload itself reads the request that follows."""
    while size:
        chunk = os.read(0, min(size, 1 << 20))
        if not chunk:
            raise RefusedError(CUT_SHORT)
        size -= len(chunk)


if __name__ == "__main__":
    main()
