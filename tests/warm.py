"""Runs of `python -m MODULE` that start from a Python which has already imported what they need.

A story starts hundreds of processes, and importing takes most of the time of each. The first run
of a test process starts a server (`python -m tests.warm FD`). It imports, and then forks for every
run: a process with its own folder, environment and streams, which runs the module as Python does.
A run with `-n 2` forks two more before it begins, which xdist takes for its workers. There is a
server for each locale; a run with other variables that decide how Python itself starts gets a
Python of its own (`cold`), unless it takes nothing of them (`isolated`). `preflight` starts Python
again, isolated, for root and in some verbs: that is only imitated here, and
tests/stories/test_root.py has what the isolation holds off.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import inspect
import json
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from dataclasses import astuple, dataclass
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar, NoReturn

from _pytest.assertion.rewrite import AssertionRewritingHook
from _pytest.config import default_plugins

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ROOT = Path(__file__).parents[1]
IMPORTED = (
    *(f"_pytest.{name}" for name in default_plugins), "_pytest._argcomplete", "pytest",
    "xdist.plugin", "xdist.looponfail", "xdist.newhooks", "execnet", "readline", "configparser",
    "jinja2", "paramiko", "sqlalchemy", "ClusterShell.NodeSet", "ClusterShell.NodeUtils",
    "preflight.plugin", "preflight.commands.cli", "preflight.session.session",
    "preflight.fabric.judge", "preflight.history.queries", "preflight.history.writing",
    "preflight.report.page", "preflight.commands.explain", "preflight.hang.explain.weigh",
    "preflight.hang.diagnose.places",
    "hypothesis.internal.observability",  # by its plugin, at the end of each run
)  # fmt: skip
"""What most runs of pytest with the plugin import, as `-X importtime` shows it."""
CHECKS = "preflight.checks"

_LOCALE = ("LANG", "LC_")
_STARTS_PYTHON = ("PYTHON", "LD_", "OPENSSL_", "MALLOC_", "GLIBC_")
"""Beginnings of variables that Python or the loader reads before any module is imported."""
_EXECVE = os.execve
_LARGEST = 1 << 20
_WORKERS = re.compile(r"(?:-n|--numprocesses)[ =]?(\d+)")


def run(
    module: str,
    words: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    timeout: float,
    isolated: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run `python -m MODULE WORDS` from a folder, with these variables and no standard input.

    One that is `isolated` becomes an isolated Python at once. Itself it loads no library to which
    LD_LIBRARY_PATH leads; only the processes that it starts do, and none of them is forked here.

    Raises:
        subprocess.TimeoutExpired: it took longer than `timeout` seconds, and was killed.

    """
    argv = [sys.executable, "-m", module, *words]
    if cold(env) and not isolated:
        return subprocess.run(
            argv, cwd=cwd, env=dict(env), stdin=subprocess.DEVNULL, capture_output=True,
            text=True, errors="replace", timeout=timeout, check=False,
        )  # fmt: skip
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        asked = _Asked(module, list(words), str(cwd), dict(env))
        code = _server(_beginning(env, _LOCALE)).run(asked, (out, err), timeout)
        return subprocess.CompletedProcess(argv, code, _text(out), _text(err))


def cold(env: Mapping[str, str]) -> bool:
    """Whether an environment asks for another start of Python than this process had."""
    return _beginning(env, _STARTS_PYTHON) != _beginning(os.environ, _STARTS_PYTHON)


def _beginning(env: Mapping[str, str], words: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(one for one in env.items() if one[0].startswith(words)))


def _text(stream: IO[bytes]) -> str:
    stream.seek(0)
    return stream.read().decode(errors="replace").replace("\r\n", "\n")


@dataclass(frozen=True)
class _Asked:
    """One run."""

    module: str
    words: list[str]
    folder: str
    variables: dict[str, str]


class _Server:
    """The process that forks, and the socket on which it is asked."""

    def __init__(self, locale: Mapping[str, str]) -> None:
        own = {k: v for k, v in os.environ.items() if not k.startswith(_LOCALE)}
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.warm", str(theirs.fileno())],
                cwd=ROOT, env={**own, **locale}, pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )  # fmt: skip

    def run(self, asked: _Asked, streams: Sequence[IO[bytes]], timeout: float) -> int:
        """Have one run made; give its exit code, or minus the signal that ended it."""
        self._socket.settimeout(None)
        message = json.dumps(astuple(asked)).encode()
        socket.send_fds(self._socket, [message], [stream.fileno() for stream in streams])
        pid = int(self._socket.recv(64))
        self._socket.settimeout(timeout)
        try:
            return int(self._socket.recv(64))
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            self._socket.settimeout(None)
            self._socket.recv(64)
            raise subprocess.TimeoutExpired([asked.module, *asked.words], timeout) from None


@cache
def _server(locale: tuple[tuple[str, str], ...]) -> _Server:
    """Start this test process's server of a locale; it ends when the socket is closed."""
    return _Server(dict(locale))


def _serve(asking: socket.socket) -> None:
    """Fork for each run that is asked for; only a forked run returns from here."""
    for name in IMPORTED:
        importlib.import_module(name)
    import msgspec

    from preflight.fleet.inventory_tables import FileTable
    from preflight.report.markup import template
    from preflight.run.measured import Measured

    for name in ("page.html.j2", "fabric.html.j2"):
        template(name)
    for kind in (FileTable, Measured):
        msgspec.json.Decoder(kind)  # reads the annotations of all kinds within
    for path in sorted((ROOT / "checks").glob("*/test_*.py")):
        importlib.import_module(f"{CHECKS}.{path.parent.name}.{path.stem}")
    _read_tables()
    for name in ("preflight", "xdist", "hypothesis", "_hypothesis_globals"):
        # As if pytest had imported them: it warns of a plugin that was imported before.
        sys.modules[name].__loader__ = AssertionRewritingHook.__new__(AssertionRewritingHook)
    gc.collect()
    gc.freeze()  # else each run's collector would walk, and copy, all that is shared
    while True:
        message, streams, _, _ = socket.recv_fds(asking, _LARGEST, 2)
        if not message:
            raise SystemExit
        if not (pid := os.fork()):
            asking.close()
            return _become(_Asked(*json.loads(message)), streams)
        for stream in streams:
            os.close(stream)
        asking.send(str(pid).encode())
        asking.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())


def _read_tables() -> None:
    """Have each cached table of the product read once, for all runs."""
    ours = [module for name, module in sys.modules.items() if name.startswith("preflight.")]
    for name, function in [one for module in ours for one in vars(module).items()]:
        cached = hasattr(function, "cache_info") and name != "_program"  # PATH decides it
        if cached and not inspect.signature(function).parameters:
            function()


def _become(asked: _Asked, streams: Sequence[int]) -> None:
    """Make this forked process what `python -m MODULE WORDS` is when its module begins."""
    for number, stream in enumerate(streams, start=1):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(asked.folder)
    os.environ.clear()
    os.environ.update(asked.variables)
    vars(os)["execve"] = _exec
    tempfile.tempdir = None
    sys.path[0] = asked.folder
    sys.argv = [asked.module, *asked.words]
    if asked.module == "pytest" and (many := _WORKERS.search(" ".join(asked.words))):
        _Worker.fork(int(many[1]))
    if "." in asked.module:
        sys.modules.pop(asked.module, None)  # else runpy warns that it is loaded already
    _leave(lambda: runpy.run_module(asked.module, run_name="__main__", alter_sys=True))


def _exec(path: str, words: Sequence[str], variables: Mapping[str, str]) -> NoReturn:
    """Become the isolated Python that `preflight.commands.start` asks for; exec another program."""
    if list(words[:2]) != [sys.executable, "-I"]:
        _EXECVE(path, list(words), variables)
    os.environ.clear()
    os.environ.update(variables)
    del sys.path[0]
    sys.dont_write_bytecode |= words[2] == "-B"
    words = [word for word in words[:3] if word != "-B"] + [*words[3:]]
    sys.argv = ["-c", *words[4:]] if words[2] == "-c" else list(words[3:])
    if words[2] == "-c":
        _leave(lambda: exec(words[3], {"__name__": "__main__"}))  # noqa: S102
    sys.modules.pop(words[3], None)
    _leave(lambda: runpy.run_module(words[3], run_name="__main__", alter_sys=True))


def _leave(work: Callable[[], object]) -> NoReturn:
    """Do the work and end as Python ends, but take nothing apart: that copies all that is shared.

    Where its output cannot be written, Python ends it.
    """
    code: object = 0
    try:
        work()
    except SystemExit as left:
        code = left.code or 0
    except Exception:  # noqa: BLE001  Python shows any
        sys.excepthook(*sys.exc_info())
        code = 1
    if not isinstance(code, int):
        raise SystemExit(code)
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as Python does
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        raise SystemExit(code) from None
    os._exit(code & 0xFF)


class _Worker:
    """A process that waits to become a worker of xdist; execnet's Popen of one."""

    spare: ClassVar[list[_Worker]] = []

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        if not self.pid:
            self._socket.close()
            for other in self.spare:
                other._socket.close()
            _work(theirs)
        theirs.close()

    @classmethod
    def fork(cls, many: int) -> None:
        """Have so many ready; xdist starts a new Python for each that it needs beyond."""
        from execnet import gateway_base, gateway_io

        cls.spare += [cls() for _ in range(many)]

        class WarmIO(gateway_io.Popen2IOMaster):
            def __init__(self, args: list[str], execmodel: Any) -> None:
                plain = [sys.executable, "-u", "-c", gateway_io.popen_bootstrapline]
                if args != plain or cold(os.environ) or not cls.spare:
                    super().__init__(args, execmodel)
                    return
                self.popen = cls.spare.pop()
                into, out = self.popen.begin()
                gateway_base.Popen2IO.__init__(self, into, out, execmodel)

        vars(gateway_io)["Popen2IOMaster"] = WarmIO

    def begin(self) -> tuple[IO[bytes], IO[bytes]]:
        """Start it in this process's folder and environment; give its input and output."""
        (reading, into), (out, writing) = os.pipe(), os.pipe()
        message = json.dumps([str(Path.cwd()), dict(os.environ)]).encode()
        socket.send_fds(self._socket, [message], [reading, writing, 2])
        self._socket.close()
        os.close(reading)
        os.close(writing)
        return os.fdopen(into, "wb"), os.fdopen(out, "rb")

    def wait(self) -> int:
        """Wait for its end, as Popen does."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def kill(self) -> None:
        """Kill it, as Popen does."""
        os.kill(self.pid, signal.SIGKILL)


def _work(asking: socket.socket) -> None:
    """Become what `python -c LINE` is when it has read from standard input; never returns."""
    message, streams, _, _ = socket.recv_fds(asking, _LARGEST, 3)
    if not message:
        os._exit(0)  # it was not needed
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    asking.close()
    folder, variables = json.loads(message)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    sys.path[0], sys.argv = "", ["-c"]
    line = eval(sys.stdin.readline())  # noqa: S307  execnet's
    _leave(lambda: exec(line, {"__name__": "__main__"}))  # noqa: S102


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
