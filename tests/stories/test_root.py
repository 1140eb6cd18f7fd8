"""Root judges from anybody's folder, and nobody's code but preflight's is run with its rights."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.lab import strangers_mount
from tests.stories.conftest import WITHOUT_OTHERS
from tests.unit.core.access_lists import let_write
from tests.unit.core.site_checks import write_check

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

REPOSITORY = Path(__file__).parents[2]
STRANGER = 65534
LONGEST_S = 120

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="what root must not do needs root")


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """A folder of another user in which everything that Python or pytest loads leaves a trace."""
    folder = tmp_path / "his"
    folder.mkdir()
    spring = f"import pathlib; pathlib.Path({str(tmp_path / 'sprung')!r}).touch()\n"
    for name in (
        "conftest",
        "evil",
        "struct",
        "socket",
        "msgspec",
        "paramiko",
        "test_his",
        "execnet",
    ):
        (folder / f"{name}.py").write_text(spring)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = -p evil\npythonpath = .\n")
    _give_away(folder)
    return folder


def _give_away(place: Path) -> None:
    for path in (place, *place.rglob("*")):
        os.chown(path, STRANGER, STRANGER) if os.geteuid() == 0 else None


def _started(
    *words: str, folder: Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    argv = [*words, "--preflight-report=out", "-m", "preflight_reach or not preflight"]
    return subprocess.run(
        argv, cwd=folder, env={**os.environ, "PYTEST_ADDOPTS": WITHOUT_OTHERS, **(env or {})},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LONGEST_S, check=False,
    )  # fmt: skip


def _pytest(
    *words: str, folder: Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    # `pytest`, unlike `python -m pytest`, does not look for modules in the working folder.
    program = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
    argv = [sys.executable, "-P", "-c", program, "--preflight", *words]
    return _started(*argv, folder=folder, env=env)


def _run(
    *words: str, folder: Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    command = str(Path(sys.executable).with_name("preflight"))
    return _started(command, "check", *words, folder=folder, env=env)


@root_only
@pytest.mark.parametrize("place", ["beside", "above", "below", "ini", "loose", "linked"])
def test_root_runs_no_strangers_conftest(tmp_path: Path, place: str) -> None:
    """A conftest or ini file that another user could write is refused unread, and the way named."""
    folder = tmp_path / "work"
    (folder / "tests").mkdir(parents=True)
    spring = f"import pathlib; pathlib.Path({str(tmp_path / 'sprung')!r}).touch()\n"
    planted = {
        "beside": folder / "conftest.py",
        "above": folder.parent / "conftest.py",
        "below": folder / "tests" / "conftest.py",
    }.get(place, folder / "conftest.py")
    if place == "above":
        (tmp_path / "pytest.ini").write_text("[pytest]\n")
    if place == "ini":
        planted = folder / "pytest.ini"
    planted.write_text("[pytest]\n" if place == "ini" else spring)
    if place == "loose":
        planted.chmod(0o666)
    elif place == "linked":
        elsewhere = tmp_path / "elsewhere.py"
        planted.rename(elsewhere)
        planted.symlink_to(elsewhere)
        os.chown(elsewhere, STRANGER, STRANGER)
    else:
        os.chown(planted, STRANGER, STRANGER)
    told = _pytest(folder=folder)
    assert told.returncode == 4, told.stdout
    assert f"root would run the code of {planted}" in told.stderr
    assert "type `preflight check` instead" in told.stderr
    assert "Traceback" not in told.stderr
    assert not (tmp_path / "sprung").exists()
    assert not (folder / "out").exists()


@root_only
@pytest.mark.parametrize(
    "place",
    [
        "package",
        "above",
        "module",
        "compiled",
        "soon",
        "helper/__init__.py",
        "helper/a.py",
        "helper",
    ],
)
def test_root_runs_nothing_that_lies_beside_a_typed_file(tmp_path: Path, place: str) -> None:
    """Nor what may yet be put there: in a sticky folder, as /tmp is, everybody may make files."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "test_own.py").write_text("def test_own():\n    import helper\n")
    spring = tmp_path / "spring.py"
    spring.write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')\n")
    planted = {
        "package": site / "__init__.py", "above": tmp_path / "__init__.py",
        "module": site / "helper.py", "compiled": site / "__pycache__" / "helper.pyc",
        "helper/__init__.py": site / "helper" / "__init__.py",
        "helper/a.py": site / "helper" / "a.py", "helper": site / "helper",
    }.get(place)  # fmt: skip
    if place == "above":
        (tmp_path / "pytest.ini").write_text("[pytest]\n")
    if planted is None:
        site.chmod(0o1777)
    else:
        planted.parent.mkdir(exist_ok=True)
        planted.mkdir() if place == "helper" else shutil.copy(spring, planted)
        os.chown(planted, STRANGER, STRANGER)
    told = _pytest(str(site / "test_own.py"), folder=Path("/"))
    assert not (tmp_path / "sprung").exists()
    assert told.returncode == 4, told.stdout
    assert f"root would run the code of {planted or site}" in told.stderr


@root_only
def test_root_takes_no_package_beside_a_conftest(tmp_path: Path) -> None:
    """Another user's folder beside root's conftest is a package, also one called as Python's."""
    (tmp_path / "conftest.py").write_text("import wave\n")
    (tmp_path / "wave").mkdir()
    (tmp_path / "wave" / "__init__.py").write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')\n")
    _give_away(tmp_path / "wave")
    told = _pytest(folder=tmp_path)
    assert not (tmp_path / "sprung").exists()
    assert told.returncode == 4, told.stdout
    assert f"root would run the code of {tmp_path / 'wave'}, and" in told.stderr


@root_only
@pytest.mark.parametrize("how", ["run", "ini", "glob", "typed", "workers"])
def test_root_runs_no_doctest(tmp_path: Path, how: str) -> None:
    """A text with examples is code, whose owner nobody checks: none is run, whatever its name."""
    site = tmp_path / "site"
    write_check(site, "site.a", "conclude(ok('fine'))", stage="reach")
    his = site / "test_his.txt"
    his.write_text(f">>> _ = open({str(tmp_path / 'sprung')!r}, 'w')\n")
    os.chown(his, STRANGER, STRANGER)
    (site / "README.md").symlink_to(his)
    told = {
        "run": lambda: _run("--site-checks=site", folder=tmp_path),
        "ini": lambda: _pytest("-o", f"preflight_checks={site}", folder=tmp_path),
        "glob": lambda: _pytest("--doctest-glob=*.md", str(site), folder=tmp_path),
        "typed": lambda: _pytest(str(his), folder=tmp_path),
        "workers": lambda: _pytest(
            "-n", "1", "--doctest-glob=*.md", "-o", f"preflight_checks={site}", folder=tmp_path
        ),
    }[how]()
    assert not (tmp_path / "sprung").exists()
    assert told.returncode == (4 if how == "typed" else 0), told.stdout + told.stderr
    assert "Traceback" not in told.stdout + told.stderr


@root_only
def test_workers_take_no_module_of_the_working_folder(tmp_path: Path, trap: Path) -> None:
    """With a typed path nobody looks at that folder, in which Python would look first."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "own" / "test_own.py").write_text("def test_own():\n    pass\n")
    own = (
        f"-c{tmp_path}/own/pytest.ini",
        f"--rootdir={tmp_path}/own",
        f"{tmp_path}/own/test_own.py",
    )
    told = _pytest("-n", "1", *own, folder=trap)
    assert not (tmp_path / "sprung").exists()
    assert "1 passed" in told.stdout


@root_only
@pytest.mark.parametrize("home", [False, True])
def test_root_debugs_by_no_strangers_orders(tmp_path: Path, home: bool) -> None:  # noqa: FBT001
    """The debugger runs the .pdbrc of the working folder and of HOME."""
    (tmp_path / "test_own.py").write_text("def test_own():\n    pass\n")
    his = tmp_path / "his"
    his.mkdir()
    (his / ".pdbrc").write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')\n")
    _give_away(his)
    words = ("--trace", f"--rootdir={tmp_path}", str(tmp_path / "test_own.py"))
    told = _pytest(*words, folder=tmp_path if home else his, env={"HOME": str(his)} if home else {})
    assert not (tmp_path / "sprung").exists()
    assert told.returncode == 4, told.stdout
    assert f"root would run the code of {his / '.pdbrc'}" in told.stderr


@root_only
def test_an_ini_file_with_an_absolute_testpaths(tmp_path: Path) -> None:
    """The conftest files there are checked, as are those that a pattern leads to."""
    his = tmp_path / "elsewhere" / "his"
    his.mkdir(parents=True)
    (his / "conftest.py").write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')\n")
    _give_away(his)
    (tmp_path / "pytest.ini").write_text(f"[pytest]\ntestpaths = {tmp_path}/else*/**/his\n")
    told = _pytest(folder=tmp_path)
    assert not (tmp_path / "sprung").exists()
    assert told.returncode == 4, told.stdout
    assert f"root would run the code of {his}, and" in told.stderr


@root_only
@pytest.mark.parametrize("user", [STRANGER, 0])
def test_root_believes_no_file_system_that_a_stranger_mounted(tmp_path: Path, user: int) -> None:
    """His program says that all in it is root's; root's own one only cannot be searched."""
    his = tmp_path / "his"
    with strangers_mount.mounted(his, user):
        told = _pytest(f"--rootdir={tmp_path}", str(his), folder=tmp_path)
        assert told.returncode == 4, told.stdout
        said = f"{his} lies in a file system that nobody mounted (FUSE)"
        assert (said if user else "root cannot look for code: ") in told.stderr
        assert "Traceback" not in told.stderr


@root_only
@pytest.mark.parametrize("end", ["\r", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028"])
def test_the_name_of_a_mount_hides_it_from_no_check(tmp_path: Path, end: str) -> None:
    """The kernel escapes a newline in it, and no other character at which Python ends a line."""
    his = tmp_path / f"a{end}x\u2003y\u2003z"
    with strangers_mount.mounted(his, STRANGER):
        told = _pytest(f"--rootdir={tmp_path}", str(his / "py-spy"), folder=tmp_path)
        assert told.returncode == 4, told.stdout
        assert "lies in a file system that nobody mounted (FUSE)" in told.stderr


@root_only
def test_a_mount_of_another_user_stops_no_hook(tmp_path: Path) -> None:
    """Whatever it is called, and though it refuses to say its size."""
    command = str(Path(sys.executable).with_name("preflight"))
    with strangers_mount.mounted(tmp_path / "a\rb", STRANGER):
        told = _started(command, "prolog", "--plain", "--fail-closed", folder=tmp_path)
        assert "a b" not in told.stdout + told.stderr
        assert "cannot be started" not in told.stderr


@root_only
def test_a_log_file_lies_in_the_working_folder(tmp_path: Path) -> None:
    """That is where pytest writes what an ini file names, whose own folder may be root's."""
    his, own = tmp_path / "his", tmp_path / "own"
    for folder in (his, own):
        folder.mkdir()
    (own / "pytest.ini").write_text("[pytest]\nlog_file = new.log\n")
    (own / "test_own.py").write_text("def test_own():\n    pass\n")
    _give_away(his)
    told = _pytest(f"-c{own}/pytest.ini", str(own / "test_own.py"), folder=his)
    assert told.returncode == 4, told.stdout
    assert f"root would write to {his / 'new.log'}" in told.stderr
    assert not (his / "new.log").exists()


@root_only
@pytest.mark.parametrize("folder", ["", "tests"])
def test_root_takes_no_conftest_that_may_yet_be_made(tmp_path: Path, folder: str) -> None:
    """A folder in which everybody may make a conftest.py is refused while there is none."""
    (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / folder).chmod(0o1777)
    told = _pytest(folder=tmp_path)
    assert told.returncode == 4
    assert f"root would run the code of {tmp_path / folder}, and every user may" in told.stderr


@root_only
def test_a_path_after_a_blank_is_told_apart_from_a_folder_of_tests(tmp_path: Path) -> None:
    """After a blank a file is a path of tests, whose folder's ini counts: the way out is `=`."""
    his = tmp_path / "his"
    his.mkdir()
    (his / "pytest.ini").write_text("[pytest]\n")
    (his / "fleet.toml").write_text('nodes = "localhost"\n')
    _give_away(his)
    own = tmp_path / "own"
    own.mkdir()
    told = _pytest("--preflight-inventory", str(his / "fleet.toml"), folder=own)
    assert told.returncode == 4
    assert f"it uses {his / 'pytest.ini'} (code that it names may have run" in told.stderr
    assert f"--preflight-inventory={his / 'fleet.toml'}" in told.stderr
    joined = _pytest(f"--preflight-inventory={his / 'fleet.toml'}", folder=own)
    assert "root would run" not in joined.stderr


@root_only
def test_root_runs_its_own_conftest(tmp_path: Path) -> None:
    """What root alone may write is loaded as ever."""
    (tmp_path / "conftest.py").write_text("open('loaded', 'w').close()\n")
    told = _pytest(folder=tmp_path)
    assert told.returncode == 0, told.stdout + told.stderr
    assert (tmp_path / "loaded").exists()


@root_only
def test_without_preflight_nothing_is_refused(tmp_path: Path) -> None:
    """The guard is preflight's; other suites run as root as they always did."""
    (tmp_path / "test_own.py").write_text("def test_own():\n    pass\n")
    (tmp_path / "conftest.py").touch()
    _give_away(tmp_path)
    argv = [sys.executable, "-m", "pytest", "-q"]
    told = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout + told.stderr


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_the_isolated_run_springs_no_trap(
    tmp_path: Path, trap: Path, workers: tuple[str, ...]
) -> None:
    """In a stranger's folder: no conftest, ini, plugin, module or variable of his takes part."""
    variables = {
        "PYTHONPATH": str(trap), "PYTHONSTARTUP": "evil.py", "PYTEST_ADDOPTS": "-p evil",
        "PYTEST_PLUGINS": "evil",
    }  # fmt: skip
    (trap / ".pdbrc").touch()
    told = _run(*workers, folder=trap, env=variables)
    assert told.returncode == 0, told.stdout + told.stderr
    assert "configfile: isolated.ini" in told.stdout
    assert "1 of 1" in told.stdout
    assert not (tmp_path / "sprung").exists()
    assert not list(trap.glob("**/__pycache__"))
    subprocess.run([sys.executable, "-m", "pytest"], cwd=trap, capture_output=True, check=False)
    assert (tmp_path / "sprung").exists(), "the trap itself is broken"
    assert (trap / "out" / "report.json").stat().st_mode & 0o777 == 0o640
    assert (trap / "out").stat().st_mode & 0o777 == 0o750


def test_the_waves_of_a_sweep_spring_no_trap(tmp_path: Path, trap: Path) -> None:
    """Neither the sweep nor the process of a wave loads anything of the folder it is started in."""
    variables = {"PYTHONPATH": str(trap), "PYTEST_ADDOPTS": "-p evil", "PYTEST_PLUGINS": "evil"}
    command = [str(Path(sys.executable).with_name("preflight")), "nightly", "--whole-fleet"]
    alone = ["--preflight-nodes=localhost", "--preflight-tier=quick", "-m", "preflight_reach"]
    told = subprocess.run(
        [*command, *alone, f"--into={tmp_path / 'own'}"], cwd=trap,
        env={**os.environ, **variables}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=LONGEST_S, check=False,
    )  # fmt: skip
    assert told.returncode == 0, told.stdout + told.stderr
    assert "1 of 1" in told.stdout
    assert not (tmp_path / "sprung").exists()
    assert not list(trap.glob("**/__pycache__"))


def test_the_isolated_run_takes_a_folder_of_site_checks(tmp_path: Path) -> None:
    """A folder that is typed adds its checks to the shipped ones; the exit codes are the same."""
    site = tmp_path / "my site"
    write_check(site, "site.a", "conclude(fail('bent', advice='drain'))", stage="reach")
    told = _run("--site-checks=my site", folder=tmp_path)
    assert told.returncode == 1, told.stdout + told.stderr
    assert "  site.a\n" in told.stdout
    assert "reach.answer" in (tmp_path / "out" / "report.json").read_text()


@root_only
def test_the_isolated_run_takes_no_strangers_checks(tmp_path: Path) -> None:
    """A folder of site checks that another user may write to is refused."""
    site = tmp_path / "site"
    write_check(site, "site.a", f"open({str(tmp_path / 'sprung')!r}, 'w')", stage="reach")
    _give_away(site)
    told = _run("--site-checks=site", folder=tmp_path)
    assert told.returncode == 4
    assert "chown -R root, chmod -R go-w" in told.stderr
    assert not (tmp_path / "sprung").exists()


@root_only
@pytest.mark.parametrize("name", ["__pycache__/test_site_a.cpython-311.pyc", "helper.py", "a.so"])
def test_the_isolated_run_takes_no_file_of_a_stranger_among_roots_checks(
    tmp_path: Path, name: str
) -> None:
    """Python loads compiled files and modules too; what holds no code may be anybody's."""
    site = tmp_path / "site"
    write_check(site, "site.a", "conclude(ok('fine'))", stage="reach")
    his = site / name
    his.parent.mkdir(exist_ok=True)
    for file in (his, site / "notes.txt"):
        file.touch()
        os.chown(file, STRANGER, STRANGER)
    told = _run("--site-checks=site", folder=tmp_path)
    assert told.returncode == 4
    assert f"root would run the code of {his}, and {his} belongs to nobody" in told.stderr
    his.unlink()
    assert _run("--site-checks=site", folder=tmp_path).returncode == 0


@root_only
def test_the_isolated_run_takes_no_package_above_roots_checks(tmp_path: Path) -> None:
    """An __init__.py in a folder above, where anybody may make one, is not loaded."""
    site = tmp_path / "all" / "site"
    write_check(site, "site.a", "conclude(ok('fine'))", stage="reach")
    (tmp_path / "all").chmod(0o1777)
    his = tmp_path / "all" / "__init__.py"
    his.write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')\n")
    os.chown(his, STRANGER, STRANGER)
    told = _run("--site-checks=all/site", folder=tmp_path)
    assert told.returncode == 0, told.stdout + told.stderr
    assert not (tmp_path / "sprung").exists()
    (site / "__init__.py").touch()  # now Python itself loads it: "all" holds a package
    told = _run("--site-checks=all/site", folder=tmp_path)
    assert not (tmp_path / "sprung").exists()
    assert told.returncode == 4
    assert f"root would run the code of {tmp_path / 'all'}, and every user may" in told.stderr


@root_only
@pytest.mark.parametrize("place", ["python", "ssh_config", "include"])
@pytest.mark.parametrize("start", [_pytest, _run])
def test_root_runs_no_command_of_a_strangers_inventory(
    tmp_path: Path, start: Callable[..., subprocess.CompletedProcess[str]], place: str
) -> None:
    """Neither by its `python`, nor by an ssh_config that it names, nor by what that includes."""
    spring = f"touch {tmp_path / 'sprung'}"
    his, inventory = tmp_path / "his", tmp_path / "fleet.toml"
    his.write_text(f'Match exec "{spring}"\n')
    (tmp_path / "roots").write_text(f"Include {his}\n")
    said = {
        "python": f'transport = "local"\npython = ["sh", "-c", "{spring}"]\n',
        "ssh_config": 'ssh_config = "his"\n',
        "include": 'ssh_config = "roots"\n',
    }[place]
    inventory.write_text(f'[defaults]\n{said}[group.gpu]\nnodes = "127.0.0.1"\n')
    strange = inventory if place == "python" else his
    os.chown(strange, STRANGER, STRANGER)
    told = start(f"--preflight-inventory={inventory}", folder=tmp_path)
    assert not (tmp_path / "sprung").exists()
    if place == "include":  # ssh itself looks at what a configuration includes
        report = (tmp_path / "out" / "report.json").read_text()
        assert f"Bad owner or permissions on {his}" in report
        return
    assert told.returncode == 4, told.stdout
    assert f"{strange} is not used: {strange} belongs to" in told.stderr
    assert "Traceback" not in told.stderr
    os.chown(strange, 0, 0)
    start(f"--preflight-inventory={inventory}", folder=tmp_path)
    assert (tmp_path / "sprung").exists(), "the trap itself is broken"


@root_only
@pytest.mark.parametrize("start", [_pytest, _run])
def test_an_access_list_lets_no_user_change_what_root_takes(
    tmp_path: Path, start: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """An inventory of root's whose access list lets another user write is not used."""
    inventory = tmp_path / "fleet.toml"
    spring = f'["sh", "-c", "touch {tmp_path / "sprung"}"]'
    inventory.write_text(
        f'[defaults]\ntransport = "local"\npython = {spring}\n[group.gpu]\nnodes = "127.0.0.1"\n'
    )
    let_write(inventory)
    told = start(f"--preflight-inventory={inventory}", folder=tmp_path)
    assert not (tmp_path / "sprung").exists()
    assert told.returncode == 4, told.stdout
    assert f"{inventory} is not used: user nobody may write to {inventory}" in told.stderr
    assert "Traceback" not in told.stderr


@root_only
@pytest.mark.parametrize(
    ("place", "kind"), [("site/test_site_a.py", "access"), ("site", "access"), ("site", "default")]
)
def test_an_access_list_lets_no_user_change_roots_checks(
    tmp_path: Path, place: str, kind: str
) -> None:
    """Nor may Python make compiled files in a folder that has another user write to them."""
    site = tmp_path / "site"
    write_check(site, "site.a", f"open({str(tmp_path / 'sprung')!r}, 'w')", stage="reach")
    let_write(tmp_path / place, kind=kind)
    told = _run("--site-checks=site", folder=tmp_path)
    assert not (tmp_path / "sprung").exists()
    assert told.returncode == 4, told.stdout
    assert "user nobody may write to" in told.stderr


@root_only
def test_a_conftest_that_another_user_inherited(tmp_path: Path) -> None:
    """A file that root makes is another's to write where the folder's default list says so."""
    his = tmp_path / "his"
    his.mkdir()
    let_write(his, kind="default")
    (his / "conftest.py").write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')\n")
    os.removexattr(his, "system.posix_acl_default")
    told = _pytest(folder=his)
    assert not (tmp_path / "sprung").exists()
    assert told.returncode == 4, told.stdout
    assert f"root would run the code of {his / 'conftest.py'}, and user nobody may" in told.stderr


@root_only
@pytest.mark.parametrize("start", [_pytest, _run])
@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_junit_xml_is_written_through_no_strangers_link(
    tmp_path: Path, start: Callable[..., subprocess.CompletedProcess[str]], when: str
) -> None:
    """Its link to a file of root's is refused, also where he makes it while the run goes on."""
    his, victim, site = tmp_path / "his", tmp_path / "victim", tmp_path / "site"
    his.mkdir()
    victim.write_text("precious")
    link = f"import os; os.symlink({str(victim)!r}, {str(his / 'out.xml')!r})"
    link = link if when == "meanwhile" else "pass"
    write_check(site, "site.a", f"{link}; conclude(ok('fine'))", stage="reach")
    if when == "before":
        (his / "out.xml").symlink_to(victim)
        os.chown(his / "out.xml", STRANGER, STRANGER, follow_symlinks=False)
    _give_away(his)
    named = ["--site-checks=site"] if start is _run else ["-o", f"preflight_checks={site}"]
    told = start(*named, f"--junitxml={his / 'out.xml'}", folder=tmp_path)
    assert victim.read_text() == "precious"
    if when == "before":
        assert told.returncode == 4
        assert f"--junitxml={his / 'out.xml'}: it is a symbolic link" in told.stderr
        assert not (tmp_path / "out").exists()
    else:
        assert told.returncode == 3, told.stdout
        words = " ".join(told.stdout.split())
        assert f"cannot write {his / 'out.xml'}: it is a symbolic link" in words
        assert "out.xml kept in" in words
    assert "Traceback" not in told.stdout + told.stderr


@root_only
@pytest.mark.parametrize("start", [_pytest, _run])
def test_junit_xml_of_roots_is_written(
    tmp_path: Path, start: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """Whole, with the folders on the way, in place of an older one."""
    for _ in range(2):
        told = start("--junitxml=new/folder/out.xml", folder=tmp_path)
        assert told.returncode == 0, told.stdout + told.stderr
        assert f"generated xml file: {tmp_path}/new/folder/out.xml" in told.stdout
    (file,) = (tmp_path / "new" / "folder").iterdir()
    assert "reach.answer" in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o640


@root_only
@pytest.mark.parametrize(
    "words",
    ["--log-file={his}/a", "--basetemp={his}/a", "--debug={his}/a", "-o log_file={his}/a",
     "-o cache_dir={his}/a", "-o cache_dir=$WHERE/a", "-o cache_dir=~/a", "--log-file={all}/a",
     "--basetemp={all}/link/../a"],
)  # fmt: skip
def test_root_writes_no_other_file_of_pytests_where_a_stranger_leads(
    tmp_path: Path, words: str
) -> None:
    """Those files are opened by pytest itself, which follows links: refused beforehand."""
    (tmp_path / "his").mkdir()
    _give_away(tmp_path / "his")
    (tmp_path / "all").mkdir()
    (tmp_path / "all").chmod(0o1777)
    (tmp_path / "own" / "below").mkdir(parents=True)
    for folder in (tmp_path, tmp_path / "all"):  # of ".." behind it pytest makes the link's folder
        (folder / "link").symlink_to(tmp_path / "own" / "below")
    named = words.format(his=tmp_path / "his", all=tmp_path / "all")
    env = (
        dict.fromkeys(("WHERE", "HOME"), str(tmp_path / "his"))
        if "=$" in words or "=~" in words
        else {}
    )
    told = _pytest(*named.split(), folder=tmp_path, env=env)
    assert told.returncode == 4, told.stdout
    assert "root would write to" in told.stderr
    assert not list((tmp_path / "his").iterdir())
    own = words.format(his=tmp_path, all=tmp_path)
    env = dict.fromkeys(env, str(tmp_path))
    assert _pytest(*own.split(), folder=tmp_path, env=env).returncode == 0


@pytest.mark.parametrize("words", ["-p evil", "-c evil.ini", "--rootdir=.", "-o pythonpath=."])
def test_the_isolated_run_stays_isolated(tmp_path: Path, words: str) -> None:
    """Options that would bring code or another configuration in are unknown to it: exit 4."""
    told = _run(*words.split(), folder=tmp_path)
    assert told.returncode == 4
    assert "unknown option" in told.stderr
    assert len(told.stderr.splitlines()[-1:]) == 1


@root_only
def test_a_checkout_that_somebody_else_owns_still_judges(tmp_path: Path) -> None:
    """Root in a checkout mounted from its owner runs that owner's preflight anyway: no refusal."""
    checkout = tmp_path / "preflight"
    for name in ("preflight", "checks", "docs"):
        shutil.copytree(REPOSITORY / name, checkout / name, symlinks=True)
    shutil.copy(REPOSITORY / "conftest.py", checkout)
    (checkout / "pytest.ini").write_text("[pytest]\n")
    inventory = '[group.here]\nnodes = "localhost"\ntransport = "local"\nknown_hosts = "hosts"\n'
    (checkout / "fleet.toml").write_text(inventory)
    _give_away(checkout)
    words = "--preflight-inventory=fleet.toml"
    told = _pytest(words, folder=checkout, env={"PYTHONPATH": str(checkout)})
    assert told.returncode == 0, told.stderr
    his = tmp_path / "his"
    his.mkdir()
    (his / "conftest.py").write_text("raise SystemExit('sprung')\n")
    _give_away(his)
    (checkout / "elsewhere").symlink_to(his)
    refused = _pytest(folder=checkout / "elsewhere", env={"PYTHONPATH": str(checkout)})
    assert refused.returncode == 4
    assert "root would run the code of" in refused.stderr


def _checks(folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    command = str(Path(sys.executable).with_name("preflight"))
    return subprocess.run(
        [command, "list-checks"], cwd=folder, env={**os.environ, **env}, capture_output=True,
        text=True, timeout=LONGEST_S, check=False,
    )  # fmt: skip


@root_only
@pytest.mark.parametrize("place", ["beside", "above", "table"])
def test_the_list_of_checks_springs_no_trap(tmp_path: Path, trap: Path, place: str) -> None:
    """`preflight list-checks` takes no order from an ini file that another user could change."""
    shutil.copy(trap / "evil.py", trap / "xdist.py")
    planted, folder = trap / "pytest.ini", trap
    if place == "above":
        folder = trap / "roots" / "own"
        folder.mkdir(parents=True)
        planted.write_text(f"[pytest]\npythonpath = {trap}\n")
    elif place == "table":
        planted = planted.rename(trap / "pyproject.toml")
        planted.write_text("[tool.pytest.ini_options]\npythonpath = ['.']\n")
    told = _checks(folder)
    assert not (tmp_path / "sprung").exists()
    assert (told.returncode, told.stdout) == (4, "")
    assert f"root would take orders from {planted}, and {trap} belongs to" in told.stderr
    assert len(told.stderr.splitlines()) == 1


@root_only
def test_the_list_of_checks_takes_nothing_of_the_environment(tmp_path: Path, trap: Path) -> None:
    """Nor a plugin, an option or a module that a variable names; root's own ini file counts."""
    (tmp_path / "pytest.ini").write_text("[pytest]\npreflight_checks = site\nrequired_plugins=x\n")
    write_check(tmp_path / "site", "site.a", "conclude(ok('fine'))")
    (tmp_path / "below").mkdir()
    told = _checks(
        tmp_path / "below", PYTHONPATH=str(trap), PYTEST_PLUGINS="evil", PYTEST_ADDOPTS="-p evil"
    )
    assert not (tmp_path / "sprung").exists()
    assert (told.returncode, told.stderr) == (0, "")
    assert "site.a" in told.stdout


@root_only
def test_the_list_of_checks_reads_no_ini_file_that_may_yet_be_made(tmp_path: Path) -> None:
    """A folder above in which anybody may make an ini file costs the shipped checks nothing."""
    tmp_path.chmod(0o1777)
    (tmp_path / "own").mkdir()
    told = _checks(tmp_path / "own")
    assert (told.returncode, told.stderr) == (0, "")
    assert "gpu.count" in told.stdout


@root_only
@pytest.mark.parametrize(
    "words", ["prolog --plain", "healthcheck --plain", "check --co -n2", "nightly a --plan"]
)
def test_a_first_start_leaves_no_compiled_module_that_others_cannot_read(
    tmp_path: Path, words: str
) -> None:
    """Root's runs hide their files from other users; of a module that would slow these down."""
    package = tmp_path / "site" / "preflight"
    shutil.copytree(REPOSITORY / "preflight", package, ignore=shutil.ignore_patterns("__pycache__"))
    python = _python_with(tmp_path, package.parent)
    done = subprocess.run(
        [python, "-m", "preflight.cli", *words.split()],
        cwd=tmp_path, env={"PATH": os.environ["PATH"]}, umask=0o022, timeout=LONGEST_S,
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    compiled = [*package.rglob("*.pyc")]
    assert compiled, done.stderr
    assert not [path for path in compiled if not path.stat().st_mode & 0o004]


def _python_with(folder: Path, site: Path) -> Path:
    """A virtual environment with this folder before ours."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    ours = "\n".join(path for path in sys.path if path.endswith("site-packages"))
    (packages / "paths.pth").write_text(f"{site}\n{ours}\n")
    return folder / "venv" / "bin" / "python"
