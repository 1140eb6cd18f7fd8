"""A history in a PostgreSQL server has the same bounds as one in a file."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import create_engine, text

from preflight.history import reading, tables
from preflight.history.place import Place
from preflight.history.run_record import HistoryError
from tests.unit.history.nights import found, gemm, kept, machine, night, runs_of, slots

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("psycopg")
_FOLDERS = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
_INITDB = shutil.which("initdb", path=os.pathsep.join(map(str, _FOLDERS)))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(_INITDB is None, reason="no PostgreSQL server is installed"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[Path]:
    """A server of our own that answers only at a socket in its folder."""
    assert _INITDB is not None
    user = "nobody" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
    as_user = {"user": user, "group": pwd.getpwnam(user).pw_gid} if os.geteuid() == 0 else {}
    with tempfile.TemporaryDirectory(prefix="pf") as name:
        folder = Path(name)
        shutil.chown(folder, user)
        data = folder / "data"
        started = f"-o-k {folder} -c listen_addresses= -c fsync=off"
        control = [str(Path(_INITDB).with_name("pg_ctl")), "-D", data, "-l", folder / "log", "-w"]

        def run(*argv: object, check: bool = True) -> None:
            subprocess.run(argv, check=check, stdout=subprocess.DEVNULL, cwd=folder, **as_user)  # type: ignore[call-overload]

        run(_INITDB, "-D", data, "-A", "trust", "-U", "ours", "-N")
        run(*control, started, "start")
        try:
            yield folder
        finally:
            run(*control, "-m", "immediate", "stop", check=False)


@pytest.fixture
def place(server: Path, request: pytest.FixtureRequest) -> Place:
    """A new database."""
    name = f"d{zlib.crc32(request.node.name.encode())}"
    url = f"postgresql+psycopg://ours@/{{}}?host={server}"
    engine = create_engine(url.format("postgres"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return Place(None, url.format(name))


def _spoil(place: Place, *statements: str) -> None:
    engine = create_engine(place.url)
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))
    engine.dispose()


def _kept(place: Place) -> None:
    seen = {"numbers": (gemm("h1", 700.0),), "findings": (found("a.b", "h1"),)}
    own = machine("h1", "not_ready", gpus=slots("GPU-1"))
    for number in range(3):
        kept(place, night(number, own, machine("h2"), **seen))


def test_nights_are_read_from_a_server(place: Place) -> None:
    """An empty database has none; then each answer is that of a file."""
    with reading(place) as history:
        assert history.last_run() is None
    _kept(place)
    with reading(place) as history:
        assert len(runs_of(history)) == 3
        past = history.node("h1")
        assert history.gpu("GPU-1") is not None
    assert past is not None
    assert [one.nights for one in past.episodes] == [3]
    assert [len(one.points) for one in past.trends] == [3]


@pytest.mark.parametrize(
    ("spoil", "bounds"),
    [
        ("UPDATE texts SET text = repeat('x', 2000)", {}),
        ("UPDATE fleets SET past = repeat('x', 17000000)", {}),
        (
            "INSERT INTO places SELECT n, 1, 1, 0, 1, NULL FROM generate_series(9, 9000) n",
            {"MOST_TEXT": 100_000, "_TEXT_PER_BYTE": 0},
        ),
    ],
    ids=["a long sentence", "a long text", "many rows"],
)
def test_too_much_text_in_a_server_is_a_line(
    place: Place, monkeypatch: pytest.MonkeyPatch, spoil: str, bounds: dict[str, int]
) -> None:
    """No text is longer than a run writes one, and rows are counted as they come."""
    _kept(place)
    _spoil(place, "ALTER TABLE texts ALTER COLUMN text TYPE text", spoil)
    for name, bound in bounds.items():
        monkeypatch.setattr(tables, name, bound)
    with pytest.raises(HistoryError, match="too much text; no run of ours wrote"):
        _asked(place)


def _asked(place: Place) -> None:
    with reading(place) as history:
        history.node("h1")


def test_a_statement_that_does_not_end_is_a_line(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here it waits for a lock of somebody else's."""
    _kept(place)
    monkeypatch.setattr(tables, "STATEMENT_S", 1)
    engine = create_engine(place.url)
    with engine.begin() as other:
        other.execute(text("LOCK TABLE runs IN ACCESS EXCLUSIVE MODE"))
        with pytest.raises(HistoryError, match="statement timeout; its server took too long"):
            _kept(place)
        with pytest.raises(HistoryError, match="statement timeout"):
            _asked(place)
    engine.dispose()
