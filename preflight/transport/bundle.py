"""What a node is sent to run: the payload as one zip, and py-spy if the node has none."""

from __future__ import annotations

import importlib.util
import io
import marshal
import os
import re
import sys
import threading
import zlib
from contextlib import suppress
from functools import lru_cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from preflight import __version__
from preflight.core.files import shipped_table
from preflight.core.remote_command import OUTPUT_LIMIT, HasPayload
from preflight.core.trust import who_may_change
from preflight.transport import reach_error, start_thread
from preflight.transport.payload_session import BOOTED, PYTHON_FLOOR, TOO_OLD, PayloadSession

if TYPE_CHECKING:
    import zipfile
    from collections.abc import Iterator, Mapping, Sequence
    from types import CodeType

    from preflight.core.remote_command import Connection
    from preflight.fleet.model import Host


PAYLOAD = Path(__file__).resolve().parent.parent / "payload"

_ENTRIES = shipped_table(__file__, "payload_entries.toml")
_COMMON_PARTS = ("start.py", "children.py")

_LOADER = f"""
preflight_version = "{__version__}"
import sys
v = tuple(sys.version_info[:2])
if v < {PYTHON_FLOOR}:
    message = "Python %d.%d is too old, %d.%d needed" % (v + {PYTHON_FLOOR})
    sys.stderr.write(message + chr(10))
    sys.exit({TOO_OLD})
import os
left = int(sys.argv[1])
fd = os.memfd_create("preflight")
while left:
    part = os.read(0, min(left, 1 << 20))
    if not part:
        sys.exit("the payload was cut short")
    left -= len(part)
    while part:
        part = part[os.write(fd, part):]
os.write(1, {BOOTED!r} + chr(10).encode())
sys.path[:] = ["/proc/self/fd/%d" % fd] + [p for p in sys.path if p]
import start
start.main(sys.argv[2])
"""

BOOT = f"exec({_LOADER!r})"
"""The program given to `python -c`: one line, without what csh or fish would read inside quotes.

The oldest Python must be able to read its first lines, which report that it is too old. A node with
a preinstalled payload (`preflight.answer`) reads the version in it, and runs none of it.
"""

SiteCode = tuple[tuple[str, bytes], ...]
"""(module, source) of a site's modules, sent with the payload and compiled on the node."""

_PYTHON = re.compile(r"python[0-9.]*")
_pack_lock = threading.Lock()


def start_payload(
    connection: Connection,
    host: Host,
    entry: str,
    request: Mapping[str, Any],
    timeout_s: float,
    *,
    limit: int = OUTPUT_LIMIT,
    payload: Path = PAYLOAD,
    modules: SiteCode = (),
    environ: Mapping[str, str] | None = None,
) -> PayloadSession:
    """Send the payload and its request to a node; `PayloadSession.read` then gives its answers.

    `entry`: "probe", "ports", "burn", "outputs", "sweep", "stacks". `request`: what it needs, and
    the run's "nonce". `timeout_s` ends all of it, on the node too. `limit`: most bytes of the
    answer. `modules`: a site's own modules, which are sent too.
    `environ`: variables for the node's Python, besides those of the login. A rank of the job has
    the job's own already.
    """
    nonce: str = request["nonce"]  # before anything is started
    if isinstance(connection, HasPayload):
        packed = b""
        remote = connection.start_entry(entry, timeout_s=timeout_s, limit=limit)
    else:
        packed = bundle(entry, payload, modules)
        argv = boot_argv(host.python, entry, len(packed), environ)
        remote = connection.start(argv, timeout_s=timeout_s, limit=limit)
    session = PayloadSession(remote, host.python, nonce, timeout_s)
    session.push(packed + msgspec.json.encode(request) + b"\n")
    return session


def boot_argv(
    python: Sequence[str], entry: str, size: int, environ: Mapping[str, str] | None = None
) -> list[str]:
    """The command that reads a payload of `size` bytes from its standard input and runs `entry`.

    The loader reads LD_LIBRARY_PATH before a program's first line, so env(1) sets `environ`: right
    before the interpreter, which is inside of the container where there is one.
    """
    # What loads torch runs in the job's Python as the job does: its environment may name what it
    # needs.
    isolated = () if _ENTRIES.get(entry, {}).get("with_torch") else ("-I",)
    words = [*python, *isolated, "-c", BOOT, str(size), entry]
    if environ:
        names = [word.rpartition("/")[2] for word in python]
        at = max((n for n, name in enumerate(names) if _PYTHON.fullmatch(name)), default=0)
        words[at:at] = ["env", *(f"{name}={value}" for name, value in environ.items())]
    return words


def bundle(entry: str, payload: Path = PAYLOAD, modules: SiteCode = ()) -> bytes:
    """The zip for an entry, made once per process."""
    with _pack_lock:
        return _bundle(entry, payload, modules)


def pack_ahead(entry: str, modules: SiteCode) -> None:
    """Make the zip in a thread, while nodes connect; `bundle` raises the same error again."""

    def pack() -> None:
        with suppress(Exception):
            bundle(entry, modules=modules)

    start_thread(pack, name="preflight-pack")


@lru_cache(maxsize=8)
def _bundle(entry: str, payload: Path, modules: SiteCode) -> bytes:
    import zipfile  # with its kin it takes 3 ms, and where the payload is installed none is made

    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        needs = _ENTRIES.get(entry, {})
        parts = (*_COMMON_PARTS, *needs.get("parts", ()))
        files = (source for source in _payload_files(payload) if source[0].startswith(parts))
        for name, path in (*files, *map(_module_file, needs.get("modules", ()))):
            _add_file(archive, name, path.read_bytes())
            _add_file(archive, name + "c", _compile(name, path))
        for module, source in modules:
            _add_file(archive, f"{module}.py", source)
    return content.getvalue()


def _payload_files(payload: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(payload.rglob("*.py")):
        name = path.relative_to(payload).as_posix()
        if name != "__init__.py":  # the folder is the zip's root, not a package
            yield name, path


def _module_file(module: str) -> tuple[str, Path]:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise reach_error("incomplete", module=module)
    return f"{module}.py", Path(spec.origin)


def _compile(name: str, path: Path) -> bytes:
    """The .pyc for a node with this Python version: unchecked, as the zip holds its source."""
    code = SourceFileLoader(name, str(path)).get_code(name)
    assert code is not None  # its source is there
    unchecked = (1).to_bytes(4, "little")
    header = importlib.util.MAGIC_NUMBER + unchecked + importlib.util.source_hash(path.read_bytes())
    return header + marshal.dumps(_relabel(code, name))


def _relabel(code: CodeType, name: str) -> CodeType:
    """Replace our own paths in compiled code, which no node needs to see, by the module's name."""
    inner = (
        _relabel(part, name) if isinstance(part, type(code)) else part for part in code.co_consts
    )
    return code.replace(co_filename=name, co_consts=tuple(inner))


def _add_file(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    """Add a file with a fixed date, so that the same payload gives the same bytes."""
    from zipfile import ZIP_DEFLATED, ZipInfo

    entry = ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
    entry.compress_type = ZIP_DEFLATED
    archive.writestr(entry, content, compresslevel=6)


_PIECE = 1 << 20
"""Bytes before base64: the payload takes no line of over 4 MiB."""

_LARGEST = 32 << 20
_ELF_MACHINES = {62: ("x86_64", "amd64"), 183: ("aarch64", "arm64"), 243: ("riscv64",)}
"""e_machine, and how uname calls it."""

_pyspy_lock = threading.Lock()


def pyspy_messages(machine: str) -> Iterator[dict[str, Any]]:
    """Yield the messages that send py-spy to a node of that kind, or one that says why not."""
    with _pyspy_lock:  # all nodes of a fleet ask at the same moment
        program = _read_pyspy()
    if program is None:
        yield {"none": "neither this node nor the machine that asks has py-spy"}
        return
    content, machines = program
    if machine not in machines:
        built = machines[0] if machines else "another kind"
        yield {"none": f"this node is {machine[:40]}, the py-spy of the machine that asks {built}"}
        return
    pieces = [content[at : at + _PIECE] for at in range(0, len(content), _PIECE)]
    for number, piece in enumerate(pieces, 1):
        yield {"part": piece, "more": number < len(pieces)}


@lru_cache(maxsize=1)
def _read_pyspy() -> tuple[bytes, tuple[str, ...]] | None:
    """Return py-spy compressed, and the machines that it runs on; None where there is none."""
    try:
        content = next((path.read_bytes() for path in _pyspy_paths() if path.is_file()), b"")
    except OSError:
        return None
    if not content.startswith(b"\x7fELF") or len(content) > _LARGEST:
        return None
    machine = int.from_bytes(content[18:20], "little")
    return zlib.compress(content, 6), _ELF_MACHINES.get(machine, ())


def _pyspy_paths() -> Iterator[Path]:
    """Where `pip install pytest-preflight[diagnose]` puts py-spy, then where a shell finds it."""
    import importlib.metadata
    import shutil

    yield Path(sys.executable).with_name("py-spy")
    try:
        files = importlib.metadata.files("py-spy") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    yield from (Path(str(file.locate())) for file in files if file.name == "py-spy")
    path = shutil.which("py-spy")
    # Root of the nodes runs it: a link on PATH may lead to what is another user's.
    if path and (os.geteuid() != 0 or not who_may_change(Path(path))):
        yield Path(path)
