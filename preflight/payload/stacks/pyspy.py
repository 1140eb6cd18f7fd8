"""Runs py-spy: finds one that may be run on this node, and reads its output."""

from __future__ import annotations

import base64
import binascii
import contextlib
import functools
import json
import os
import platform
import re
import signal
import stat
import struct
import sys
import tempfile
import time
import zlib
from collections import Counter
from typing import Any, Iterable, Iterator

from probe import guard, node_files, procfs
from probe.node_files import attempt, clean
from start import Emit, Read

MOST_THREADS, MOST_FRAMES, KEPT_INNER = 256, 128, 96
"""Of a deep stack, the innermost frames are kept, and the outermost, which are the script's."""

MOST_PLACES = 64
"""Most places of one sampled process."""

_OPENING = re.compile(rb"^\[", re.MULTILINE)
_LAST_LINE = 2**31
_THREAD = re.compile(r"thread \(([^)]*)\)(?:: (.*))?")
_TIMES = re.compile(r"\d{1,9}", re.ASCII)
_SAMPLED = re.compile(r"(?=.*\)$)(.*) \((.*?)(?::(\d{1,9}))?\)", re.ASCII)


def parse(output: bytes, pid: int, most: int = 1024) -> list[dict[str, Any]] | None:
    """Return the `Thread`s of `py-spy dump --json`, the main one first; None if invalid.

    `most`: frames of all threads together; with more, threads other than the main one lose theirs.
    """
    opening = _OPENING.search(output)
    if opening is None:
        return None
    try:
        text = output[opening.start() :].decode("utf-8", "replace")
        rows, _ = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(rows, list):
        return None
    rows = [row for row in rows if isinstance(row, dict)]
    by_name = not any(row.get("os_thread_id") == pid for row in rows)
    threads = [_thread(row, pid, by_name=by_name) for row in rows]
    threads.sort(key=lambda thread: not thread["main"])
    for thread in threads[1:]:
        most -= len(thread["frames"])
        if most < 0:
            thread["frames"] = []
    return threads[:MOST_THREADS]


def _thread(row: dict[str, Any], pid: int, *, by_name: bool) -> dict[str, Any]:
    """Read one thread; in a container py-spy has the container's thread ids: names count then."""
    frames = row.get("frames")
    frames = frames if isinstance(frames, list) else []
    bounded = _within_bounds([_frame(frame) for frame in frames if isinstance(frame, dict)])
    name = _text(row.get("thread_name"))
    return {
        "frames": bounded,
        "main": name == "MainThread" if by_name else row.get("os_thread_id") == pid,
        "name": name,
    }


def _frame(row: dict[str, Any]) -> dict[str, Any]:
    line = row.get("line")
    return {
        "function": _text(row.get("name")),
        "file": _text(row.get("filename")),
        "line": line if isinstance(line, int) and 0 <= line < _LAST_LINE else 0,
    }


def _text(value: Any) -> str:
    return clean(value) if isinstance(value, str) else ""


def parse_samples(output: bytes, pid: int) -> list[dict[str, Any]]:
    """Return the `Sighting`s of `py-spy record -f raw`: the stacks of the main thread.

    A line is `thread (0x7f): MainThread;<module> (/a.py:9);step (/a.py:3) 17`, outermost first.
    """
    times_of: Counter[str] = Counter()
    for line in output.decode("utf-8", "replace").split("\n"):
        stack, _, times = line.rpartition(" ")
        thread, _, calls = stack.partition(";")
        if calls and _TIMES.fullmatch(times) and _is_main(thread, pid):
            times_of[calls] += int(times)
    most = times_of.most_common(MOST_PLACES)
    return [{"frames": _sampled(calls.split(";")), "times": times} for calls, times in most]


def _is_main(label: str, pid: int) -> bool:
    """Whether it is the main thread; without `threading`, a process's threads have no names."""
    thread = _THREAD.fullmatch(label)
    return thread is not None and (thread[2] == "MainThread" or thread[1] == str(pid))


def _sampled(calls: list[str]) -> list[dict[str, Any]]:
    frames = []
    for call in reversed(calls):
        match = _SAMPLED.fullmatch(call)
        name, file, line = match.groups() if match else (call, "", None)
        frames.append({"function": clean(name), "file": clean(file), "line": int(line or 0)})
    return _within_bounds(frames)


def _within_bounds(frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if len(frames) <= MOST_FRAMES:
        return frames
    return frames[:KEPT_INNER] + frames[KEPT_INNER - MOST_FRAMES :]


def stack_text(threads: Any) -> str:
    """Return the main thread's stack as one text, to compare; "" without a main thread."""
    frames: list[dict[str, Any]] = next((row["frames"] for row in threads if row["main"]), [])
    return "\n".join(f"{frame['function']} {frame['file']}:{frame['line']}" for frame in frames)


EACH_S = 4.0
"""Time limit for one process: it takes 20 ms on an idle node, seconds on a loaded one."""

NATIVE_EACH_S = 6.0
"""The symbols of torch are hundreds of MB to read."""

AT_ONCE = min(4, len(os.sched_getaffinity(0)))
"""More would all be late where each needs seconds of CPU time."""

SAMPLES_A_SECOND = 20
"""Samples of each rank: one takes 0.1 ms of CPU time, without a pause."""

LATE = "py-spy did not answer in time"
TOO_LONG = "the stacks of this node are too long together"

LATE_S = 1.0
"""How much longer a sampler may take, to start and to end."""
_LIMIT = 4 << 20
_MOST_FRAMES, _ALL_FRAMES, _ALL_BYTES = 1024, 32768, 5 << 20
"""Most frames of one process, and of all together, and bytes: the answer is limited in size."""
_PLACES = ("/usr/local/bin", "/usr/bin", "/opt/conda/bin", os.path.expanduser("~/.local/bin"))
_MOST_STEPS = 400
"""Most folders and links on the path to one program; links may form a loop."""

_VERSION = re.compile(r"py-spy (\d[\w.]{0,30})")


class Spy:
    """A py-spy that can be run here."""

    def __init__(self, path: str, by: str) -> None:
        self._path = path
        self.by = by
        """Its name in the document."""

    def dump(
        self, pids: Iterable[int], until: float, *, native: bool = False, at_once: int = AT_ONCE
    ) -> dict[int, Any]:
        """Return the threads of each process, or an error text.

        Without `native` no process is paused. With it, ptrace stops each one while its stack is
        walked; if py-spy must be killed meanwhile, the process is continued.
        """
        pending = list(pids)
        room = min(_MOST_FRAMES, max(1, _ALL_FRAMES // max(1, len(pending))))
        stacks: dict[int, Any] = {}
        running: list[tuple[int, float, guard.Child]] = []
        while pending or running:
            while pending and len(running) < at_once and time.monotonic() < until:
                pid = pending.pop(0)
                each_s = NATIVE_EACH_S if native else EACH_S
                deadline = min(until, time.monotonic() + each_s)
                mode = "--native" if native else "--nonblocking"
                argv = [self._path, "dump", mode, "--json", "--full-filenames", "--pid", str(pid)]
                running.append((pid, deadline, _begin(argv, pid, errors=True)))
            if not running:
                stacks.update(dict.fromkeys(pending, LATE))
                break
            pid, deadline, child = running.pop(0)
            answered = child.listen(deadline)
            child.dismiss(kill=not answered or len(child.output) > _LIMIT)
            if native and not answered:
                _continue(pid)
            stacks[pid] = _stack(child, pid, room) if answered else LATE
        return {pid: stack or TOO_LONG for pid, stack in _fit(stacks)}

    def sample(self, pids: Iterable[int], seconds: int) -> dict[int, guard.Child]:
        """Sample processes for `seconds`, each by a child of its own, without pausing them."""
        argv = [self._path, "record", "--nonblocking", "--idle", "--threads", "--full-filenames"]
        argv += ["--format", "raw", "--output", "/dev/stdout", "--rate", str(SAMPLES_A_SECOND)]
        argv += ["--duration", str(seconds), "--pid"]
        return {pid: _begin([*argv, str(pid)], pid) for pid in pids}


def collect_samples(
    samplers: dict[int, guard.Child], until: float
) -> dict[int, list[dict[str, Any]]]:
    """Return the `Sighting`s of each process whose sampler ends by `until`; end the others."""
    sightings = {}
    for pid, child in samplers.items():
        answered = child.listen(until) and len(child.output) <= _LIMIT
        child.dismiss(kill=not answered)
        if answered:
            sightings[pid] = parse_samples(bytes(child.output), pid)
    return {pid: rows or [] for pid, rows in _fit(sightings)}


def _fit(results: dict[int, Any]) -> Iterator[tuple[int, Any]]:
    """Yield each process with what was read of it, or None: a user may choose long names."""
    bytes_left = _ALL_BYTES
    for pid, value in results.items():
        size = len(json.dumps(value))
        fits = size <= bytes_left
        bytes_left -= size * fits
        yield pid, value if fits else None


def _begin(argv: list[str], pid: int = 0, *, errors: bool = False) -> guard.Child:
    """Start py-spy; as root, on a user's process `pid` only with the rights of that user."""
    environ = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LC_ALL": "C"}
    is_foreign = pid and os.geteuid() == 0 and procfs.uid(pid) != 0
    become = functools.partial(_become_user_of, pid) if is_foreign else None
    return guard.spawn_program(argv, environ, errors=errors, most=_LIMIT, become=become)


_KEEP_CAPS, _AMBIENT, _RAISE, _PTRACE = 8, 47, 2, 19
_CAPABILITY_VERSION_3 = 0x20080522


def _become_user_of(pid: int) -> None:
    """Take the rights of the user of a process, and keep only the right to read its memory.

    py-spy opens libraries by their paths in the process's own mounts, where its user may have put
    any device: opening and closing /dev/watchdog0 restarts a machine.
    """
    import ctypes  # only the child of root needs it

    status = procfs.status(pid)
    uid, gid = int(status[b"Uid"][0]), int(status[b"Gid"][0])
    os.fchown(1, uid, gid)  # py-spy opens its output, a pipe, by name
    libc = ctypes.CDLL(None)
    libc.prctl(_KEEP_CAPS, 1, 0, 0, 0)
    os.setgroups([*map(int, status[b"Groups"])])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    # Both calls fail in a container without the capability: its user's own rights may be enough.
    ptrace = 1 << _PTRACE
    libc.capset(
        struct.pack("=Ii", _CAPABILITY_VERSION_3, 0), struct.pack("=6I", *[ptrace] * 3, 0, 0, 0)
    )
    libc.prctl(_AMBIENT, _RAISE, _PTRACE, 0, 0)


def _stack(child: guard.Child, pid: int, room: int) -> Any:
    threads = parse(bytes(child.output), pid, room)
    if threads:
        return threads
    lines = [line for line in bytes(child.output).splitlines() if line.strip()]
    error = clean(lines[0], 200) if lines else f"exit {child.status}"
    return error.replace("Error: ", "")


def _continue(pid: int) -> None:
    """Continue a process that a killed py-spy may have left stopped."""
    for _ in range(20):
        time.sleep(0.01)
        process = procfs.outline(pid)
        if process is None:
            return
        if process.state == "T":
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGCONT)


def find_installed(bins: Iterable[str], until: float) -> Spy | None:
    """Return the first py-spy that runs: next to the ranks' Python, on PATH, in common folders."""
    common = [*os.environ.get("PATH", "").split(os.pathsep), *_PLACES]
    for folder in filter(os.path.isabs, dict.fromkeys([*bins, *common])):
        path = os.path.join(folder, "py-spy")
        if os.geteuid() == 0 or folder not in common:  # users choose the folders of their ranks
            path = resolve_path(path)
        if path and _may_run(path):
            version = version_of(path, until)
            if version:
                return Spy(path, f"py-spy {version} of this node")
    return None


def _may_run(path: str) -> bool:
    """Whether this account may run it; for root, whether the ranks' users may, too."""
    try:
        anyone_may = bool(os.stat(path).st_mode & stat.S_IXOTH)
    except OSError:
        return False
    return os.access(path, os.X_OK) and (anyone_may or os.geteuid() != 0)


def version_of(path: str, until: float) -> str:
    """Return its version; "" if it cannot be run or is not py-spy."""
    child = _begin([path, "--version"])
    answered = child.listen(min(until, time.monotonic() + EACH_S))
    child.dismiss(kill=not answered)
    match = _VERSION.search(bytes(child.output).decode("ascii", "replace"))
    return match.group(1) if answered and match else ""


def resolve_path(path: str) -> str:
    """Return the file that an absolute path leads to; "" if another user could change that.

    Each step, including links, is checked after those before it: no other user can replace it then.
    """
    place, steps, count = "/", path.split("/")[::-1], 0
    try:
        while steps and count < _MOST_STEPS:
            count += 1
            place = os.path.normpath(os.path.join(place, steps.pop()))
            if not _is_trusted(place):
                return ""
            if os.path.islink(place):
                target = os.readlink(place)
                steps += target.split("/")[::-1]
                place = "/" if target.startswith("/") else os.path.dirname(place)
        return place if not steps and os.path.isfile(place) else ""
    except OSError:
        return ""


def _is_trusted(place: str) -> bool:
    """Whether it belongs to root or us, and no other user can have placed it or can change it.

    No other user can move our folders in a sticky folder, but others may have put a file there.
    """
    status, parent = os.lstat(place), os.lstat(os.path.dirname(place))
    other_writers = stat.S_IWOTH if os.geteuid() else stat.S_IWGRP | stat.S_IWOTH
    device = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    mounted = {mount.fuse_user for mount in node_files.read() if mount.device == device}
    if not {status.st_uid, *mounted} <= {0, os.geteuid()}:
        return False
    if stat.S_ISDIR(status.st_mode):
        return not status.st_mode & other_writers or bool(status.st_mode & stat.S_ISVTX)
    return not parent.st_mode & other_writers and (
        stat.S_ISLNK(status.st_mode) or not status.st_mode & other_writers
    )


WAIT_S = 8.0
"""Time for 3 MB to arrive over a slow connection."""

_LARGEST = 32 << 20


def request_spy(emit: Emit) -> bool:
    """Request py-spy; False with a preinstalled payload, which runs no program that is sent.

    docs/how-to/preinstalled.md guarantees that.
    """
    if not any(path.startswith("/proc/self/fd/") for path in sys.path):
        return False
    emit({"lacks": "py-spy", "machine": platform.machine()})
    return True


def receive_spy(lines: Read, until: float) -> tuple[Spy | None, str]:
    """Return the py-spy that the controller sends, or why there is none that runs.

    It runs from memory, or else from a temporary file, which lasts as long as this process.
    """
    try:
        content = _receive(lines, min(until, time.monotonic() + WAIT_S))
    except TimeoutError:
        return None, "py-spy did not arrive in time"
    except (ValueError, zlib.error, KeyError, TypeError):
        return None, "the py-spy that arrived is damaged"
    if isinstance(content, str):
        return None, content
    for place in (_memory_file, _temporary_file):
        with contextlib.suppress(OSError, AttributeError):
            file = place(content)
            path = f"/proc/{os.getpid()}/fd/{file}"
            version = version_of(path, until)
            if version:
                return Spy(path, f"py-spy {version} that travelled"), ""
            os.close(file)
    origin = "from memory or its temporary folder"
    return None, f"py-spy arrived, but this node runs no program {origin}"


def _memory_file(content: bytes) -> int:
    file = os.memfd_create("preflight-py-spy")
    with open(file, "wb", closefd=False) as stream:
        stream.write(content)
    return file


def _temporary_file(content: bytes) -> int:
    """Return an unnamed file, open for reading: the kernel runs none that is open for writing."""
    with tempfile.NamedTemporaryFile(prefix="preflight-") as file:
        file.write(content)
        file.flush()
        os.fchmod(file.fileno(), 0o755)  # the ranks' users run it
        # Not by its name.
        return os.open(f"/proc/self/fd/{file.fileno()}", os.O_RDONLY | os.O_CLOEXEC)


def _receive(lines: Read, ends: float) -> bytes | str:
    """Return the program, or why none is sent; TimeoutError, or ValueError if it is damaged."""
    packed = bytearray()
    while True:
        message = lines(max(0.0, ends - time.monotonic()))
        if message is None:
            return "the controller sent no py-spy"
        if "none" in message:
            return str(message["none"])
        packed += base64.b64decode(message["part"], validate=True)
        if len(packed) > _LARGEST:
            raise binascii.Error("too much")
        if not message.get("more"):
            return zlib.decompressobj().decompress(bytes(packed), _LARGEST)


_SCOPE = "/proc/sys/kernel/yama/ptrace_scope"
_PARENT_ONLY, _ADMIN_ONLY, _NO_PTRACE = "1", "2", "3"


def refusal(uid: int | None, user: str) -> str:  # noqa: PLR0911 (one line per cause)
    """Return why this login may not read a process of that user; "" if it may."""
    scope, own = attempt(_SCOPE), os.geteuid()
    if scope == _NO_PTRACE:
        return (
            "the kernel lets no process read another one (kernel.yama.ptrace_scope is 3): "
            "set it to 1 in /etc/sysctl.d and restart the node"
        )
    if procfs.has_capability(_PTRACE):
        return ""
    if own == 0:
        return (
            "this container has no CAP_SYS_PTRACE: run preflight diagnose on the host, or start "
            "it with --cap-add=SYS_PTRACE (Kubernetes: capabilities: add: [SYS_PTRACE])"
        )
    if uid != own:
        account = user if uid == 0 else f"{user} or as root"
        return f"it belongs to {user}: run preflight diagnose as {account}"
    if scope == _ADMIN_ONLY:
        return (
            "only root may read another process here (kernel.yama.ptrace_scope is 2): "
            "run preflight diagnose as root"
        )
    if scope == _PARENT_ONLY:
        return (
            "the kernel lets only a parent read it (kernel.yama.ptrace_scope is 1): "
            "sudo sysctl kernel.yama.ptrace_scope=0, or run preflight diagnose as root"
        )
    return ""
