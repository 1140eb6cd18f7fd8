"""What py-spy says of a process becomes stacks: function, file and line, and never a value."""

from __future__ import annotations

import json
import re

from probe.text import clean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST_THREADS, MOST_FRAMES, KEPT_INNER = 256, 128, 96
"""Of a deep recursion the innermost frames are kept, and the outermost: the script's own."""

MOST_PLACES = 64
"""Of one process that was sampled; a rank in more of them stands nowhere for long."""

_OPENING = re.compile(rb"^\[", re.MULTILINE)
_LAST_LINE = 2**31
_THREAD = re.compile(r"thread \(([^)]*)\)(?:: (.*))?")
_TIMES = re.compile(r"\d{1,9}", re.ASCII)
_SAMPLED = re.compile(r"(?=.*\)$)(.*) \((.*?)(?::(\d{1,9}))?\)", re.ASCII)


def parse(said: bytes, pid: int, most: int = 1024) -> list[dict[str, Any]] | None:
    """Return the `Thread`s of `py-spy dump --json`, the main one first; None for anything else.

    `most`: frames of all threads together; those beyond are left out, the main one's never.
    """
    opening = _OPENING.search(said)
    if opening is None:
        return None
    try:
        text = said[opening.start() :].decode("utf-8", "replace")
        listed, _ = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(listed, list):
        return None
    listed = [one for one in listed if isinstance(one, dict)]
    by_name = not any(one.get("os_thread_id") == pid for one in listed)
    threads = [_thread(one, pid, by_name=by_name) for one in listed]
    threads.sort(key=lambda one: not one["main"])
    for thread in threads[1:]:
        most -= len(thread["frames"])
        if most < 0:
            thread["frames"] = []
    return threads[:MOST_THREADS]


def _thread(one: dict[str, Any], pid: int, *, by_name: bool) -> dict[str, Any]:
    """Read one thread; in a container py-spy tells the container's numbers, so names must do."""
    frames = one.get("frames")
    frames = frames if isinstance(frames, list) else []
    told = _within_bounds([_frame(each) for each in frames if isinstance(each, dict)])
    active, holds = one.get("active"), one.get("owns_gil")
    name = _text(one.get("thread_name"))
    return {
        "frames": told,
        "main": name == "MainThread" if by_name else one.get("os_thread_id") == pid,
        "name": name,
        "idle": not active if isinstance(active, bool) else None,
        "holds_gil": holds if isinstance(holds, bool) else None,
    }


def _frame(one: dict[str, Any]) -> dict[str, Any]:
    line = one.get("line")
    return {
        "function": _text(one.get("name")),
        "file": _text(one.get("filename")),
        "line": line if isinstance(line, int) and 0 <= line < _LAST_LINE else 0,
    }


def _text(value: Any) -> str:
    return clean(value) if isinstance(value, str) else ""


def parse_samples(said: bytes, pid: int) -> list[dict[str, Any]]:
    """Return the `Sighting`s of `py-spy record -f raw`: where the main thread was seen.

    A line is `thread (0x7f): MainThread;<module> (/a.py:9);step (/a.py:3) 17`, outermost first.
    """
    seen: dict[str, int] = {}
    for line in said.decode("utf-8", "replace").splitlines():
        stack, _, times = line.rpartition(" ")
        thread, _, calls = stack.partition(";")
        if calls and _TIMES.fullmatch(times) and _is_main(thread, pid):
            seen[calls] = seen.get(calls, 0) + int(times)
    ordered = sorted(seen, key=lambda calls: -seen[calls])[:MOST_PLACES]
    return [{"frames": _sampled(calls.split(";")), "times": seen[calls]} for calls in ordered]


def _is_main(told: str, pid: int) -> bool:
    """Whether it is the main one; a process without `threading` gives its threads no names."""
    thread = _THREAD.fullmatch(told)
    return thread is not None and (thread[2] == "MainThread" or thread[1] == str(pid))


def _sampled(calls: list[str]) -> list[dict[str, Any]]:
    frames = []
    for call in reversed(calls):
        told = _SAMPLED.fullmatch(call)
        name, file, line = told.groups() if told else (call, "", None)
        frames.append({"function": clean(name), "file": clean(file), "line": int(line or 0)})
    return _within_bounds(frames)


def _within_bounds(frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if len(frames) <= MOST_FRAMES:
        return frames
    return frames[:KEPT_INNER] + frames[KEPT_INNER - MOST_FRAMES :]


def where(threads: Any) -> str:
    """Return the main thread's stack as one text, to compare; "" where it was not told."""
    main = next((one for one in threads if one["main"]), None)
    if main is None:
        return ""
    return "\n".join(f"{f['function']} {f['file']}:{f['line']}" for f in main["frames"])
