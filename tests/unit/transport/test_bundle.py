"""The payload travels to a node and leaves nothing there."""

from __future__ import annotations

import io
import os
import shlex
import shutil
import subprocess
import sys
import uuid
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from preflight.core.remote_command import LocalConnection, ReachError
from preflight.fleet.model import Host
from preflight.transport.bundle import BOOT, boot_argv, bundle, start_payload
from tests.unit.transport.sshd import PATIENCE_S, processes_with, wait_until

if TYPE_CHECKING:
    from preflight.core.remote_command import Connection

pytestmark = pytest.mark.slow

START = """
import json, os, sys

def main(entry):
    request = json.loads(sys.stdin.readline())
    mark = "@preflight " + request["nonce"] + " "
    def emit(document):
        print(mark + json.dumps(document), flush=True)
    exec(request.get("do", ""), dict(globals(), **locals()))
"""
REQUEST = {"nonce": "n1"}


@pytest.fixture
def payload(tmp_path: Path) -> Path:
    """Make a payload that does what its request says."""
    folder = tmp_path / "payload"
    (folder / "probe").mkdir(parents=True)
    (folder / "start.py").write_text(START)
    (folder / "__init__.py").write_text("raise ImportError('the root is no package')\n")
    (folder / "probe" / "__init__.py").write_text("WORD = 'deep'\n")
    return folder


def ask(connection: Connection, node: Host, payload: Path, do: str, **options: object) -> bytes:
    """Start the payload, let it do something, and read one answer."""
    request = {"nonce": "n1", "do": do}
    entry, timeout_s = str(options.get("entry", "probe")), float(str(options.get("timeout_s", 20)))
    limit = int(str(options.get("limit", 8 << 20)))
    talk = start_payload(connection, node, entry, request, timeout_s, limit=limit, payload=payload)
    try:
        return talk.read(float(str(options.get("read_s", PATIENCE_S))))
    finally:
        talk.close()


def refused(
    connection: Connection, node: Host, payload: Path, do: str = "", **options: object
) -> ReachError:
    """Return why there was no answer."""
    with pytest.raises(ReachError) as caught:
        ask(connection, node, payload, do, **options)
    assert caught.value.advice
    assert caught.value.sentence.isprintable()
    return caught.value


def here(*python: str) -> Host:
    """Describe this machine with some Python."""
    return Host(name="here", address="here", transport="local", python=python or (sys.executable,))


def test_the_real_payload_answers(connection: Connection, node: Host) -> None:
    """What we ship boots on a node: a request for no entry at all is refused by our own code."""
    with pytest.raises(ReachError, match="no entry") as caught:
        start_payload(connection, node, "no entry", REQUEST, PATIENCE_S).read(PATIENCE_S)
    assert caught.value.step == "answer"


def test_an_answer_comes_back_and_nothing_stays(
    connection: Connection, node: Host, payload: Path, tmp_path: Path
) -> None:
    """The payload runs from memory: its home, temporary and working folder stay empty."""
    room, token = tmp_path / "room", uuid.uuid4().hex
    room.mkdir()
    enter = f'cd {room} && HOME={room} TMPDIR={room} exec "$@"'
    python = ("sh", "-c", enter, "sh", sys.executable, "-X", f"token={token}")
    do = "import probe, pynvml as p\nemit({'word': probe.WORD, 'from': p.__file__, 'in': sys.path})"
    document = ask(connection, msgspec.structs.replace(node, python=python), payload, do)
    assert b'"word": "deep", "from": "/proc/self/fd/' in document
    assert b'""' not in document
    assert list(room.iterdir()) == []
    wait_until(lambda: not processes_with(token), "the node's Python is gone")


def test_a_conversation_of_several_steps(connection: Connection, node: Host, payload: Path) -> None:
    """Messages go to and fro until the input is finished."""
    do = "for line in sys.stdin: emit({'got': json.loads(line)})\nemit({'end': True})"
    request = {"nonce": "n1", "do": do}
    talk = start_payload(connection, node, "ports", request, PATIENCE_S, payload=payload)
    for number in range(3):
        talk.send({"number": number})
        assert talk.read(PATIENCE_S) == b'{"got": {"number": %d}}' % number
    talk.finish()
    assert talk.read(PATIENCE_S) == b'{"end": true}'
    talk.close()


def test_noise_is_passed_over(payload: Path) -> None:
    """What a login shell prints, or another run, is not taken for the answer."""
    noisy = here("sh", "-c", "echo Welcome; printf 'to node '; exec \"$@\"", "sh", sys.executable)
    do = "print('@preflight other {\"a\": 1}')\nprint('x' * 100_000)\nemit({'a': 2})"
    assert ask(LocalConnection(), noisy, payload, do) == b'{"a": 2}'


def test_noise_without_end_is_not_listened_to(payload: Path) -> None:
    """A few megabytes of empty lines are cut off: hearing them all would starve other nodes."""
    do = "sys.stdout.write(chr(10) * 200_000)\nemit({'a': 2})"
    error = refused(LocalConnection(), here(), payload, do)
    assert (error.step, error.sentence) == (
        "answer", "it wrote over 100000 lines where an answer was expected",
    )  # fmt: skip


def test_only_the_probe_carries_the_driver_library(payload: Path) -> None:
    """Each zip holds the payload at its root with compiled twins; pynvml goes with the probe."""
    names = zipfile.ZipFile(io.BytesIO(bundle("ports", payload))).namelist()
    files = ["probe/__init__.py", "probe/__init__.pyc", "start.py", "start.pyc"]
    assert sorted(names) == files
    probe = zipfile.ZipFile(io.BytesIO(bundle("probe", payload))).namelist()
    assert sorted(probe) == sorted([*files, "pynvml.py", "pynvml.pyc"])


@pytest.mark.parametrize(
    ("entry", "module"),
    [
        ("probe", "probe.main"),
        ("ports", "job_ports"),
        ("burn", "burn.main"),
        ("sweep", "sweep.main"),
    ],
)
def test_an_entry_has_all_that_it_imports(entry: str, module: str, tmp_path: Path) -> None:
    """Nothing else of ours is at hand, and the packages of other entries stay at home."""
    archive = tmp_path / "payload.zip"
    archive.write_bytes(bundle(entry))
    modules = [
        name.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        for name in zipfile.ZipFile(archive).namelist()
        if name.endswith(".py")
    ]
    assert module in modules
    assert "node_relay" not in modules
    program = f"import sys; sys.path.insert(0, {str(archive)!r}); import {', '.join(modules)}"
    result = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, check=False)
    assert result.returncode == 0, result.stderr


def test_nothing_is_compiled_on_a_node_like_ours(payload: Path) -> None:
    """Python takes the compiled twin: a source that cannot be compiled proves it."""
    packed = io.BytesIO()
    made = zipfile.ZipFile(io.BytesIO(bundle("ports", payload)))
    with zipfile.ZipFile(packed, "w") as spoilt:
        for name in made.namelist():
            spoilt.writestr(name, made.read(name) if name.endswith("c") else b"not python")
    archive = payload.parent / "spoilt.zip"
    archive.write_bytes(packed.getvalue())
    program = f"import sys; sys.path.insert(0, {str(archive)!r}); import probe; print(probe.WORD)"
    result = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, check=False)
    assert result.stdout == b"deep\n", result.stderr


def test_our_paths_do_not_travel(payload: Path) -> None:
    """The compiled files do not say where they were compiled."""
    with zipfile.ZipFile(io.BytesIO(bundle("probe", payload))) as packed:
        for name in packed.namelist():
            assert os.fsencode(payload) not in packed.read(name)
            assert os.fsencode(sys.prefix) not in packed.read(name)


def test_the_boot_line_survives_every_shell() -> None:
    """One line without what csh, fish or sh would read inside single quotes."""
    assert "\n" not in BOOT
    assert "!" not in BOOT
    assert "\\\\" not in BOOT


def pythons(version: str) -> list[str]:
    """Pythons of that version that this machine happens to have."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [str(path) for path in root.glob(f"{version}.*/bin/python")]
    if on_path := shutil.which(f"python{version}"):
        found.append(on_path)
    works = "import sys; sys.stdout.write('%d.%d' % tuple(sys.version_info[:2]))"
    return [
        python
        for python in found
        if subprocess.run([python, "-c", works], capture_output=True, check=False).stdout
        == version.encode()
    ]


@pytest.mark.parametrize("version", ["2.7", "3.4", "3.5", "3.6", "3.7"])
def test_a_python_that_is_too_old_says_so(payload: Path, version: str) -> None:
    """A Python that could not run the payload can still read the line that tells."""
    if not (found := pythons(version)):
        pytest.skip(f"no Python {version} on this machine")
    error = refused(LocalConnection(), here(found[0]), payload, entry="sweep")
    assert error.step == "python"
    assert error.sentence == f"{found[0]}: Python {version} is too old, 3.8 needed"


@pytest.mark.parametrize("version", ["3.8", "3.12"])
def test_other_pythons_compile_for_themselves(payload: Path, version: str) -> None:
    """A node with another Python than ours runs the sources."""
    if not (found := pythons(version)):
        pytest.skip(f"no Python {version} on this machine")
    do = "import probe, pynvml\nemit({'version': '%d.%d' % sys.version_info[:2]})"
    answer = ask(LocalConnection(), here(found[0]), payload, do)
    assert answer.decode() == f'{{"version": "{version}"}}'


def test_a_node_without_python_says_so(connection: Connection, node: Host, payload: Path) -> None:
    """A Python that is not there is step `python`, by its name."""
    bare = Host(name="h", address="h", python=("no-such-python3",))
    error = refused(connection, bare, payload)
    assert error.step == "python"
    assert "no-such-python3: not found" in error.sentence
    del node


@pytest.mark.parametrize(
    ("python", "word"),
    [
        (("/etc/passwd",), "cannot be executed"),
        (("sh", "-c", "echo FATAL: no image >&2; exit 255"), "FATAL: no image"),
    ],
)
def test_a_python_that_does_not_start_says_so(
    payload: Path, python: tuple[str, ...], word: str
) -> None:
    """A container prefix that fails, or a file that is no program, is step `python` too."""
    error = refused(LocalConnection(), here(*python), payload)
    assert error.step == "python"
    assert word in error.sentence


@pytest.mark.parametrize(
    ("says", "status", "word", "advice"),
    [
        ("bash: line 1: timeout: command not found", 127, "timeout(1) cannot be run", "coreutils"),
        ("sh: 1: /usr/bin/timeout: Permission denied", 126, "timeout(1) cannot", "coreutils"),
        ("timeout: Command not found.", 127, "timeout(1) cannot be run", "coreutils"),
        ("the payload was cut short", 1, "cut short on its way", "the connection"),
    ],
)
def test_what_is_not_pythons_fault_is_not_advised_as_such(
    payload: Path, says: str, status: int, word: str, advice: str
) -> None:
    """A node without timeout(1), or a broken line, is not mended by another Python."""
    python = here("/bin/sh", "-c", f"echo {shlex.quote(says)} >&2; exit {status}")
    error = refused(LocalConnection(), python, payload)
    assert error.step == "answer"
    assert word in error.sentence
    assert advice in error.advice
    assert "install Python" not in error.advice


def test_a_shell_that_ends_first_is_thought_of(payload: Path) -> None:
    """`exit 1` in .bashrc looks like a Python that does not start: the advice leads to both."""
    error = refused(LocalConnection(), here("/bin/sh", "-c", "exit 1"), payload)
    assert "did not start (exit 1)" in error.sentence
    assert "if it starts by hand, look at what the login shell's start files do" in error.advice


@pytest.mark.parametrize(
    ("do", "options", "word"),
    [
        (
            "os.write(2, b'\\x1b[31mred\\x07\\n'); os._exit(3)",
            {},
            "exit 3 before it answered; its output: red",
        ),
        ("import time; time.sleep(60)", {"timeout_s": 1}, "its deadline of 1 s"),
        ("import time; time.sleep(60)", {"read_s": 0.3}, "no answer in 0.3 s"),
        ("print('z' * (2 << 20))", {"limit": 1 << 20}, "more than 1 MiB"),
        ("os.kill(os.getpid(), 9)", {}, "killed by a signal"),
    ],
)
def test_what_came_instead_of_an_answer_is_reported(
    connection: Connection,
    node: Host,
    payload: Path,
    *,
    do: str,
    options: dict[str, float],
    word: str,
) -> None:
    """A payload that dies, hangs or floods is step `answer`, each with its own sentence."""
    error = refused(connection, node, payload, do, **options)
    assert error.step == "answer"
    assert word in error.sentence


def test_a_shell_that_runs_something_else_is_found_out(payload: Path) -> None:
    """A forced command that says nothing of ours and exits 0 is no answer."""
    error = refused(LocalConnection(), here("echo", "This account is\x1b[5m closed"), payload)
    assert error.step == "answer"
    assert "something else answered; its output: This account is closed" in error.sentence


def test_a_request_without_a_nonce_is_our_own_mistake(payload: Path) -> None:
    """An answer could not be distinguished from another run's."""
    with pytest.raises(KeyError):
        start_payload(LocalConnection(), here(), "probe", {"name": "h"}, 5, payload=payload)


def test_a_payload_starts_in_the_environment_of_the_job(
    connection: Connection, node: Host, payload: Path
) -> None:
    """A value with blanks and quotes arrives whole, and is there before Python's first line."""
    environ = {"NCCL_IB_HCA": "=mlx5_0:1", "LD_LIBRARY_PATH": "/opt/it's here/lib:/x"}
    do = "emit({n: os.environ.get(n) for n in ('NCCL_IB_HCA', 'LD_LIBRARY_PATH')}); emit("
    do += "open('/proc/self/environ').read().count('NCCL_IB_HCA==mlx5_0:1'))"
    request = {"nonce": "n1", "do": do}
    talk = start_payload(
        connection, node, "sweep", request, PATIENCE_S, payload=payload, environ=environ
    )
    try:
        assert msgspec.json.decode(talk.read(PATIENCE_S)) == environ
        assert msgspec.json.decode(talk.read(PATIENCE_S)) == 1
    finally:
        talk.close()


def test_the_environment_is_set_inside_of_a_container() -> None:
    """Right before the interpreter; in front of all where no word looks like one."""
    inside = boot_argv(
        ("apptainer", "exec", "x.sif", "/opt/bin/python3.11", "-X", "dev"), "sweep", 9, {"A": "1"}
    )
    assert inside[:6] == ["apptainer", "exec", "x.sif", "env", "A=1", "/opt/bin/python3.11"]
    assert boot_argv(("/opt/train/run",), "burn", 9, {"A": "1"})[:3] == [
        "env",
        "A=1",
        "/opt/train/run",
    ]
