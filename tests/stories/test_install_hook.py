"""`preflight install-hook` as an operator types it: shown first, tried, once, and undone."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from preflight.hook.hook_values import parse_config
from tests import warm

if TYPE_CHECKING:
    from tests.stories.hooked import Hooked

PREFLIGHT = str(Path(sys.executable).with_name("preflight"))
FILES = ("slurm/prolog.d/50-preflight", "slurm/preflight-healthcheck", "preflight/hook.toml")
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def _install(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    places = (f"--slurm-dir={folder}/slurm", f"--config-dir={folder}/preflight")
    words = ("install-hook", *places, *words)
    return warm.run("preflight", words, cwd=folder, env=os.environ, timeout=300)


def _actions(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [one["action"] for one in json.loads(done.stdout)["files"]]


def _written(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder that root trusts, if this is root."""
    tmp_path.chmod(0o755)
    return tmp_path


@pytest.fixture
def node(place: Path, hooked: Hooked) -> Path:
    """An operator's hook.toml, so that the trial checks an emulated node and writes only here."""
    (place / "preflight").mkdir()
    (place / "preflight/hook.toml").write_text(hooked.config.read_text())
    return place


def test_a_dry_run_shows_the_files_and_writes_none(place: Path) -> None:
    """Each with its mode; and the lines for slurm.conf, with these folders."""
    done = _install(place, "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")
    assert all(f"{place}/{file}" in done.stdout for file in FILES)
    assert f"\n           CONFIG={place}/preflight/hook.toml\n" in done.stdout
    assert "nothing was written" in " ".join(done.stdout.split())
    assert f"Prolog={place}/slurm/prolog.d/*" in done.stdout
    assert _written(place) == set()


def test_it_installs_once_and_is_undone(place: Path) -> None:
    """Below a prefix as a packager does: the scripts name the final places, and only observe."""
    prefix = f"--prefix={place}/root"
    assert _actions(_install(place, prefix, "--json")) == ["write", "write", "write"]
    root = Path(f"{place}/root{place}")
    assert _written(root) == set(FILES)
    prolog, settings = root / FILES[0], root / FILES[2]
    assert f"\nPREFLIGHT={PREFLIGHT}\nCONFIG={place}/preflight/hook.toml\n" in prolog.read_text()
    assert (prolog.stat().st_mode & 0o777, settings.stat().st_mode & 0o777) == (0o755, 0o644)
    config = parse_config(settings.read_bytes(), settings)
    assert (config.enforce, config.inventory) == (False, None)  # no fleet.toml is there yet
    again = _install(place, prefix)
    assert (again.returncode, "nothing    to change" in again.stdout) == (0, True)
    undone = _install(place, prefix, "--uninstall")
    assert (undone.returncode, _written(root)) == (0, set())


def test_what_an_operator_edited_stays(place: Path) -> None:
    """A script that differs is kept, unless --force is given; hook.toml is always kept."""
    prefix = f"--prefix={place}/root"
    _install(place, prefix)
    root = Path(f"{place}/root{place}")
    for file in FILES:
        (root / file).write_text((root / file).read_text() + "# mine\n")
    assert _actions(_install(place, prefix, "--json")) == ["keep"] * 3
    assert _actions(_install(place, prefix, "--uninstall", "--json")) == ["keep"] * 3
    assert all("# mine" in (root / file).read_text() for file in FILES)
    kept = " ".join(_install(place, prefix).stdout.split())
    assert (kept.count("to replace it, add --force"), "what was edited stays" in kept) == (2, True)
    assert _actions(_install(place, prefix, "--force", "--json")) == ["replace", "replace", "keep"]
    assert "# mine" not in (root / FILES[0]).read_text()


def test_an_empty_prefix_is_refused(place: Path) -> None:
    """Else a variable that is not set would install into this machine's own /etc."""
    done = _install(place, "--prefix=")
    assert (done.returncode, _written(place)) == (4, set())
    assert "it is empty" in done.stderr


def test_it_tries_what_it_installed(node: Path) -> None:
    """The prolog's script runs as Slurm would run it, and the health check's answer is shown."""
    done = _install(node)
    assert "the prolog: exit 0, 0 expected" in " ".join(done.stdout.split()), done.stderr
    assert "the health check: this node is" in " ".join(done.stdout.split())
    broken = (node / "preflight/hook.toml").read_text().replace("inventory = ", "inventroy = ")
    (node / "preflight/hook.toml").write_text(broken)
    failed = _install(node)
    assert failed.returncode == 3
    assert "could not be checked (" in " ".join(failed.stdout.split())


def test_a_prolog_that_could_drain_is_not_tried(node: Path) -> None:
    """Where hook.toml enforces, only the health check runs, which calls no scheduler."""
    config = node / "preflight/hook.toml"
    config.write_text(f"enforce = true\n{config.read_text()}[breaker]\nslurm = true\n")
    document = json.loads(_install(node, "--json").stdout)
    assert document["trial"]["prolog_exit"] is None
    assert document["trial"]["healthcheck_exit"] in (0, 1, 2)


@root_only
@pytest.mark.parametrize("whose", ["slurm", "preflight"])
def test_root_installs_into_no_folder_that_another_user_can_change(place: Path, whose: str) -> None:
    """The hook itself would refuse it later, on every node: nothing is written now."""
    (place / whose).mkdir()
    os.chown(place / whose, 65534, 65534)
    done = _install(place)
    assert (done.returncode, _written(place)) == (4, set())
    assert f"{place}/{whose} belongs to nobody; chown root:" in done.stderr


_SWAP = """
import os, sys
os.setgid(65534)
os.setuid(65534)
print(flush=True)
while True:
    try:
        os.rename("package", "moved")
    except FileNotFoundError:
        continue
    os.symlink(sys.argv[1], "package")
    break
"""


@root_only
def test_no_folder_is_made_or_changed_through_a_strangers_link(place: Path) -> None:
    """Not even if the link replaces a folder that was made just now, in a user's folder."""
    for number in range(5):
        his, secret = place / f"his{number}", place / f"secret{number}"
        his.mkdir()
        os.chown(his, 65534, 65534)
        secret.mkdir(0o700)
        with subprocess.Popen(
            [sys.executable, "-I", "-c", _SWAP, str(secret)], cwd=his, stdout=subprocess.PIPE
        ) as swap:
            try:
                assert swap.stdout is not None
                assert swap.stdout.readline() == b"\n"
                _install(place, f"--prefix={his}/package")
            finally:
                swap.kill()
        assert [*secret.iterdir()] == []
        assert stat.S_IMODE(secret.stat().st_mode) == 0o700


@root_only
def test_without_root_it_says_so(place: Path) -> None:
    """One line with what to do, and nothing half written."""
    program = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", PREFLIGHT]
    done = subprocess.run(
        [*program, "install-hook"], cwd="/", capture_output=True, text=True, check=False,
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"},
    )  # fmt: skip
    if "Permission denied" in done.stderr:
        pytest.skip("another user cannot run this Python")
    assert done.returncode == 4
    assert "cannot write into /etc" in done.stderr
    assert "run it as root" in done.stderr
    assert not place.joinpath("slurm").exists()
