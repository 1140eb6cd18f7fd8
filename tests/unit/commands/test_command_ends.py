"""How the `preflight` command ends where its output cannot be written, or Ctrl-C is typed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from preflight.session.flags import add_options
from tests import warm

pytestmark = pytest.mark.slow

PREFLIGHT = (sys.executable, "-m", "preflight")
OF_DEVELOPMENT = ("-p", "no:hypothesispytest", "-p", "no:pytest11.testinfra")
"""Plugins without which each run of pytest begins a third sooner."""
LOG = "RuntimeError: failed to bind to [::]:29511 (errno: 98 - Address already in use).\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("words", [
    ("list-checks",), ("explain", "a.log"), ("lint", "a.py"), ("--help",), ("check", "--help"),
])  # fmt: skip
def test_a_full_disk_is_one_line(tmp_path: Path, words: tuple[str, ...]) -> None:
    """An answer that cannot be written is an error, and not a traceback."""
    (tmp_path / "a.log").write_text(LOG)
    (tmp_path / "a.py").write_text("import torch.distributed as dist\ndist.init_process_group()\n")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*PREFLIGHT, *words], cwd=tmp_path, stdout=full, stderr=subprocess.PIPE,
            text=True, timeout=60, check=False,
        )  # fmt: skip
    line = "preflight: cannot write the answer: No space left on device\n"
    assert (done.stderr, done.returncode) == (line, 4)


def test_ctrl_c_is_one_line(tmp_path: Path) -> None:
    """It waits for a log that does not come, and is ended."""
    process = subprocess.Popen(
        [*PREFLIGHT, "explain", "-"], cwd=tmp_path, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        assert process.stdin
        process.stdin.write(LOG * 20_000)  # more than a pipe holds: when it is in, it is being read
        process.stdin.flush()
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert err == "\npreflight: interrupted\n"


_INTERRUPTED_IMPORT = """
import os, signal, sys
class Finder:
    wanted = sys.argv.pop(1)
    def find_spec(name, path, target=None):
        if name == Finder.wanted:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder)
from preflight.__main__ import main
sys.exit(main())
"""


_ALL_LOAD = ("preflight.commands", "re")
_OTHERS_LOAD = (
    *(
        "preflight.commands.cli",
        "argparse",
        "preflight.core.command_line",
        "preflight.commands.check",
    ),
)


@pytest.mark.parametrize(("verb", "module"), [
    *product(("list-checks", "check", "watch"), (*_ALL_LOAD, *_OTHERS_LOAD)),
    *product(("prolog", "healthcheck"), _ALL_LOAD),
])  # fmt: skip
def test_ctrl_c_while_modules_load_is_one_line(tmp_path: Path, verb: str, module: str) -> None:
    """It was a traceback of whichever import it met, and an end by the signal."""
    words = [verb, *{"watch": ["--", "true"], "check": ["--co"]}.get(verb, [])]
    words += ["--plain"] * (verb in ("prolog", "healthcheck"))
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED_IMPORT, module, *words], cwd=tmp_path,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    said = [
        line for line in done.stderr.splitlines() if "not taken from the environment" not in line
    ]
    assert len("\n".join(said).strip().splitlines()) == 1
    assert "preflight: interrupted" in done.stderr


_FEW_FILES = """
import resource, sys
most = int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
from preflight.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize("most", [5, 6, 8, 12])
@pytest.mark.parametrize(("words", "code"), [
    (("prolog",), 0), (("prolog", "--plain"), 2), (("healthcheck", "--plain"), 2),
])  # fmt: skip
def test_too_few_descriptors_are_one_line(
    tmp_path: Path, most: int, words: tuple[str, ...], code: int
) -> None:
    """The hook could not check the node; Python itself starts with five descriptors."""
    done = subprocess.run(
        [sys.executable, "-c", _FEW_FILES, str(most), *words], cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, "Traceback" in done.stderr) == (code, False)
    assert len(done.stderr.splitlines()) <= 1, done.stderr
    assert most < 8 or f"may only open {most} files, at least 32 are needed" in done.stderr


_LITTLE_MEMORY = """
import resource, sys
from preflight.commands.cli import main
import preflight.commands.read
kib = int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmSize")))
resource.setrlimit(resource.RLIMIT_AS, (kib * 1024 + (8 << 20),) * 2)
sys.exit(main(sys.argv[1:]))
"""


def test_too_little_memory_is_one_line(tmp_path: Path) -> None:
    """A log is too large for a limit of the user's."""
    (tmp_path / "a.log").write_text(LOG * 200_000)
    done = subprocess.run(
        [sys.executable, "-c", _LITTLE_MEMORY, "read", "a.log"], cwd=tmp_path,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (3, "")
    line = "preflight: cannot go on: Cannot allocate memory; raise the limit (ulimit -a shows it)\n"
    assert done.stderr == line


def test_a_reader_that_left_is_no_success(tmp_path: Path) -> None:
    """0 may mean that a job progresses: who hears nothing must not read that from it."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed_pipe:
        done = subprocess.run(
            [*PREFLIGHT, "list-checks"], cwd=tmp_path, stdout=closed_pipe, stderr=subprocess.PIPE,
            text=True, timeout=60, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


@pytest.mark.parametrize("words", [
    ("history", "--history", "{}"), ("read", "{}/a.log"), ("lint", "{}/a.py"), ("report", "{}"),
    ("explain", "{}/a.log"), ("blame", "{}/sweep.json"), ("diagnose", "{}"),
    ("capture", "{}", "--tier=quick"),
])  # fmt: skip
def test_no_name_of_a_file_drives_the_terminal(tmp_path: Path, words: tuple[str, ...]) -> None:
    """A folder may be called like an escape sequence: what a command prints holds none."""
    folder = tmp_path / "no\x1b[1m"
    folder.mkdir()
    (folder / "a.log").write_text(LOG)
    (folder / "a.py").write_text("import torch.distributed as dist\ndist.barrier()\n")
    (folder / "sweep.json").write_text('{"ladder": [], "rounds": [], "pairs": []}')
    said = [word.format(folder) for word in words]
    done = warm.run("preflight", said, cwd=Path.cwd(), env=os.environ, timeout=60)
    assert (done.stdout + done.stderr).replace("\n", "").isprintable()


@pytest.mark.parametrize("words", [
    ("report", "a", "{}"), ("blame", "a", "{}"), ("{}",), ("list-checks", "--{}"),
    ("diagnose", "--{}"), ("check", "--{}"), ("nightly", "--wave-budget={}"), ("completion", "{}"),
    ("prolog", "--plain", "{}"), ("healthcheck", "--plain", "--{}"),
])  # fmt: skip
def test_no_word_that_a_parser_refuses_drives_the_terminal(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    """An unknown argument, an unknown option, a bad choice, of each parser."""
    said = [word.format("z\x1b]0;owned\x07\x1b[31mz") for word in words]
    done = warm.run("preflight", said, cwd=tmp_path, env=os.environ, timeout=60)
    assert done.returncode in (2, 4)
    text = (done.stdout + done.stderr).replace("\n", "")
    assert "owned" in text
    assert text.isprintable(), text


def _options_with_a_value() -> list[str]:
    offered: dict[str, bool] = {}
    parser = pytest.Parser(_ispytest=True)
    add_options(parser)
    for group in parser._groups:
        for option in group.options:
            attrs = option.attrs()
            offered |= dict.fromkeys(option.names(), "action" not in attrs)
    return [option for option, has_value in offered.items() if has_value]


@pytest.mark.parametrize("option", _options_with_a_value())
def test_no_value_of_an_option_drives_the_terminal(tmp_path: Path, option: str) -> None:
    """Named in pytest's own `ERROR:` line or in the header: a file, a folder, or nothing there."""
    name = "x\x1b]0;owned\x07\x1b[31m"
    (tmp_path / name).mkdir()
    for suffix in (".toml", ".json"):
        (tmp_path / name).with_suffix(suffix).write_text("[bad")
    values = [f"{name}.toml", f"{name}.json", name, f"{name}.none/x"]
    for value in values:
        words = ["--preflight", "-p", "no:cacheprovider", "--preflight-checks=host.load"]
        words += OF_DEVELOPMENT
        done = warm.run(
            "pytest", [*words, f"{option}={value}"], cwd=tmp_path, env=os.environ, timeout=60
        )
        text = (done.stdout + done.stderr).replace("\n", "")
        assert text.isprintable(), text
