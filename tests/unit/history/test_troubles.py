"""A history that is locked, damaged, full, foreign or newer costs a line, and is left unharmed."""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
import struct
import subprocess
import sys
import tempfile
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateTable

from preflight.commands import cli
from preflight.errors import UsageError
from preflight.history import reading, tables
from preflight.history.place import NAME, Place, explain_refusal, parse_place
from preflight.history.run_record import HistoryError, no_coverage_update
from preflight.history.tables import METADATA
from preflight.history.writing import writing
from tests.unit.history.nights import found, gemm, kept, machine, made, night, runs_of, slots

if TYPE_CHECKING:
    from collections.abc import Callable

NOBODY = 65534
_WRITER = """\
import sys
from pathlib import Path
from preflight.history.run_record import no_coverage_update
from preflight.history.writing import writing
from tests.unit.history.nights import found, machine, made, night
first, number, hang = int(sys.argv[2]), int(sys.argv[3]), len(sys.argv) > 4
place = made(Path(sys.argv[1]))
for one in range(first, first + number):
    with writing(place) as writer:
        writer.add(night(one, machine("h1", "not_ready"), machine("h2"),
                         findings=(found("gpu.ecc", "h1"),)), no_coverage_update)
        if hang:
            print("written", flush=True)
            sys.stdin.read()
"""


def _runs(place: Place) -> list[str]:
    with reading(place) as history:
        return [one.run for one in runs_of(history)][::-1]


def _file(place: Place) -> Path:
    assert place.file is not None
    return place.file


def _as_nobody(work: Callable[[], object]) -> str:
    """What it raises when a user without any right does it; nothing if it goes well."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if not child:
        outcome = ""
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setuid(NOBODY)
            work()
        except BaseException as error:  # noqa: BLE001  the parent raises it, as words
            outcome = f"{type(error).__name__}: {error}"
        os.write(write_end, outcome.encode())
        os._exit(0)
    os.close(write_end)
    with open(read_end, "rb") as file:  # noqa: PTH123  a descriptor
        outcome = file.read().decode()
    os.waitpid(child, 0)
    return outcome


def test_a_history_that_another_run_writes_is_waited_for_and_then_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader does not wait: it reads the state before the write."""
    monkeypatch.setattr(tables, "PATIENCE_S", 0.05)
    place = made(tmp_path)
    kept(place, night(1, machine("h1")))
    with closing(sqlite3.connect(_file(place), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(HistoryError, match=r"database is locked; another run is writing it"):
            kept(place, night(2, machine("h1")))
        assert len(_runs(place)) == 1
    kept(place, night(2, machine("h1")))
    assert len(_runs(place)) == 2


@pytest.mark.slow
def test_two_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    """One waits for the other, also where both make the database."""
    argv = [sys.executable, "-c", _WRITER, str(tmp_path)]
    writers = [subprocess.Popen([*argv, first, "8"]) for first in ("0", "100")]
    assert [one.wait(timeout=120) for one in writers] == [0, 0]
    place = parse_place(str(tmp_path), tmp_path)
    runs = _runs(place)
    assert sorted(runs) == sorted(f"{n:032x}" for n in (*range(8), *range(100, 108)))
    with reading(place) as history:
        past = history.node("h1")
    assert past is not None
    assert [one.nights for one in past.episodes] == [16]


@pytest.mark.slow
def test_a_writer_that_is_killed_leaves_whole_nights(tmp_path: Path) -> None:
    """What it had not finished never was; the next one goes on."""
    place = made(tmp_path)
    kept(place, night(1, machine("h1")))
    argv = [sys.executable, "-c", _WRITER, str(tmp_path), "2", "1", "hang"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"written\n"
        writer.send_signal(signal.SIGKILL)
        writer.wait(timeout=60)
    assert _runs(place) == [f"{1:032x}"]
    kept(place, night(3, machine("h1")))
    assert _runs(place) == [f"{1:032x}", f"{3:032x}"]


@pytest.mark.slow
def test_a_full_disk_keeps_the_nights_that_were_there(tmp_path: Path) -> None:
    """The night that did not fit is not remembered; no part of it is."""
    place = made(tmp_path)
    kept(place, night(1, machine("h1")))
    large = night(2, *(machine(f"h{n}") for n in range(3000)))

    def write() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        most = _file(place).stat().st_size + 20_000
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        kept(place, large)

    error = _as_nobody(write) if os.geteuid() else _in_a_child(write)
    assert error.startswith(f"HistoryError: cannot use the history {place.words}: ")
    assert ("free space on" in error) or ("check its disk" in error)
    assert _runs(place) == [f"{1:032x}"]


def _in_a_child(work: Callable[[], object]) -> str:
    """The same as whoever we are."""
    was = os.geteuid
    os.geteuid = lambda: 1
    try:
        return _as_nobody(work)
    finally:
        os.geteuid = was


def test_whoever_may_not_write_can_still_read() -> None:
    """Another user of the machine asks; the run that he starts says that it is not remembered."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        place = made(folder)
        kept(place, night(1, machine("h1"), numbers=(gemm("h1", 700.0),)))
        _file(place).chmod(0o644)
        folder.chmod(0o755 if os.geteuid() == 0 else 0o555)
        if os.geteuid():
            _file(place).chmod(0o444)

        def ask() -> None:
            with reading(place) as history:
                assert history.node("h1") is not None

        assert _as_nobody(ask) == ""
        error = _as_nobody(lambda: kept(place, night(2, machine("h1"))))
        assert "; make it writable for this user, or give another" in error
        folder.chmod(0o755)


@pytest.mark.parametrize("schema", [4, 6])
def test_a_history_of_another_schema_is_left_alone(tmp_path: Path, schema: int) -> None:
    """Another version of preflight wrote it; this one does not know what it means."""
    place = made(tmp_path)
    kept(place, night(1, machine("h1")))
    with closing(sqlite3.connect(_file(place))) as other:
        other.execute("UPDATE preflight_history SET schema_version = ?", (schema,))
        other.commit()
    before = _file(place).read_bytes()
    for work in (lambda: _runs(place), lambda: kept(place, night(2, machine("h1")))):
        with pytest.raises(HistoryError, match=f"schema {schema}, this preflight knows 5; use the"):
            work()
    assert _file(place).read_bytes() == before


@pytest.mark.parametrize("content", [b"x", b"SQLite format 3\0" + b"\xff" * 5000])
def test_what_is_no_database_is_refused(tmp_path: Path, content: bytes) -> None:
    """With its name and both ways out; what lies there stays."""
    place = made(tmp_path)
    _file(place).write_bytes(content)
    with pytest.raises(HistoryError) as refused:
        _runs(place)
    assert str(refused.value).startswith(f"cannot use the history {tmp_path / NAME}: ")
    assert str(refused.value).endswith("or give another: --preflight-history=DIR")
    assert _file(place).read_bytes() == content


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_root_has_no_history_in_a_strangers_folder(tmp_path: Path) -> None:
    """SQLite follows a link in the file's place, which he may put there at any moment."""
    place = made(tmp_path / "his")
    os.chown(tmp_path / "his", 65534, 65534)
    with pytest.raises(HistoryError, match=f"{tmp_path}/his belongs to"):
        _runs(place)
    (tmp_path / "his" / NAME).unlink()
    with pytest.raises(HistoryError, match=f"{tmp_path}/his belongs to"):
        made(tmp_path / "his")
    assert list((tmp_path / "his").iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o2775, 0o755])
def test_a_strangers_journal_deletes_no_file(mode: int) -> None:
    """SQLite obeys a journal beside a history, and deletes the file that the journal names.

    With mode 755 the folder was open to others earlier.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        place, letter = made(folder), folder / "letter"
        kept(place, night(1, machine("h1")))
        letter.write_text("not yours")
        for own in (_file(place), letter):
            os.chown(own, NOBODY, NOBODY)
        _plant_journal(_file(place), letter)
        os.chown(folder, NOBODY if mode == 0o755 else 0, 100)
        folder.chmod(mode)
        why = _as_nobody(lambda: kept(place, night(2, machine("h1"))))
        assert why.startswith("HistoryError: cannot use the history"), why
        assert letter.read_text() == "not yours"


def _plant_journal(file: Path, victim: Path) -> None:
    """Write a journal of another user beside an SQLite file: no page, and a file to delete."""
    magic, name = bytes.fromhex("d9d505f920a163d7"), bytes(victim)
    page = struct.unpack_from(">H", file.read_bytes(), 16)[0]
    head = magic + struct.pack(">5I", 0, 0, file.stat().st_size // page, 512, page)
    tail = struct.pack(">I", (1 << 30) // page + 1) + name
    journal = file.with_name(f"{file.name}-journal")
    journal.write_bytes(
        head.ljust(512, b"\0") + tail + struct.pack(">II", len(name), sum(name)) + magic
    )
    os.chown(journal, 4321, 4321)
    journal.chmod(0o666)


def test_a_strangers_database_is_not_written_to(tmp_path: Path) -> None:
    """Somebody else's tables are in it."""
    place = made(tmp_path)
    with closing(sqlite3.connect(_file(place))) as other:
        other.execute("CREATE TABLE accounts (id INTEGER)")
    with pytest.raises(HistoryError, match="another program made it"):
        kept(place, night(1, machine("h1")))


def test_a_damaged_page_is_a_line(tmp_path: Path) -> None:
    """Zeros or noise in the middle: an error of the database, never a traceback."""
    place = made(tmp_path)
    for number in range(3):
        kept(place, night(number, *(machine(f"h{n}") for n in range(400))))
    whole = bytearray(_file(place).read_bytes())
    whole[8192:-4096] = b"\xa5" * (len(whole) - 8192 - 4096)
    _file(place).write_bytes(whole)
    with pytest.raises(HistoryError, match=r"malformed; it is damaged: move it away"):
        kept(place, night(9, machine("h1")))


@pytest.mark.slow
@pytest.mark.parametrize(
    "spoil",
    [
        "UPDATE measures SET numbers = '[700'",
        "UPDATE measures SET numbers = '{}'",
        "UPDATE layouts SET units = 7",
        "UPDATE fleets SET past = '{\"runs\": -1}'",
        "DROP TABLE measures",
        "DELETE FROM runs WHERE id = 1",
        "UPDATE runs SET fleet_id = 77 WHERE id = 1",
        "UPDATE states SET run_id = -5 WHERE run_id = 1 AND node_id = 1",
    ],
)
def test_what_another_user_wrote_into_it_is_a_line_or_nothing(tmp_path: Path, spoil: str) -> None:
    """A refusal, or an answer of plain values: never a traceback."""
    place = made(tmp_path)
    for number in range(2):
        kept(place, night(number, machine("h1", "not_ready"), machine("h2"), machine("h3"),
                          numbers=(gemm("h1", 700.0),),
                          findings=(found("a.b", "h1"),)))  # fmt: skip
    with closing(sqlite3.connect(_file(place))) as other:
        other.execute(spoil)
        other.commit()
    try:
        with reading(place) as history:
            last = history.last_run()
            answers = (history.node("h1"), history.past(("h1", "h2", "h3"), {}), last)
            history.changes(last)
    except HistoryError as error:
        assert "move it away" in str(error) or "repair it" in str(error)  # noqa: PT017
    else:
        assert all(one is not None for one in answers)


@pytest.mark.slow
def test_a_column_that_is_empty_though_it_may_not_be_is_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file's own SQL need not be ours: NULL was where a text is read.

    Each column is asked for in two of five ways here, in all of them with PREFLIGHT_CASES.
    """
    place = made(tmp_path / "whole")
    seen = {"numbers": (gemm("h1", 700.0),), "findings": (found("a.b", "h1"),)}
    own = machine("h1", "not_ready", gpus=slots("GPU-1"))
    for number in range(2):
        kept(place, night(number, own, machine("h2"), **seen))
    asked: list[tuple[str, ...]] = [(), ("h1",), ("--gpu=GPU-1",), ("--worst",), ("h1", "--json")]
    ways = len(asked) if "PREFLIGHT_CASES" in os.environ else 2
    for table in METADATA.sorted_tables:
        for column in table.columns.keys():  # noqa: SIM118  columns, not names, are their items
            bent = tmp_path / f"{table.name}.{column}"
            bent.mkdir()
            (bent / NAME).write_bytes(_file(place).read_bytes())
            with closing(sqlite3.connect(bent / NAME)) as other:
                other.execute("PRAGMA writable_schema = ON")
                other.execute("UPDATE sqlite_master SET sql = replace(sql, ' NOT NULL', '')")
                other.commit()
            with closing(sqlite3.connect(bent / NAME)) as other, suppress(sqlite3.IntegrityError):
                other.execute(f"UPDATE {table.name} SET {column} = NULL")  # noqa: S608  our names
                other.commit()
            for words in asked[:ways]:
                assert cli.main(["history", f"--history={bent}", *words]) in (0, 4, 5)
            asked = [*asked[ways:], *asked[:ways]]
    assert "holds values that no run wrote" in capsys.readouterr().err


@pytest.mark.slow
def test_a_history_that_keeps_the_reader_busy_is_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its indexes each episode goes over all verdicts: 16,000 of them took 32 s."""
    place = made(tmp_path)
    many = tuple(found(f"a.b{at}", "h1") for at in range(400))
    for number in range(2):
        kept(place, night(number, machine("h1", "not_ready"), findings=many))
    monkeypatch.setattr(tables, "MOST_STEPS", 400_000)
    assert cli.main(["history", f"--history={tmp_path}"]) == 0
    with closing(sqlite3.connect(_file(place))) as other:
        other.execute("DROP INDEX ix_verdicts_episode_id")
        other.execute("DROP INDEX ix_verdicts_run_id")
        other.commit()
    assert cli.main(["history", f"--history={tmp_path}"]) == 4
    (line,) = capsys.readouterr().err.splitlines()
    assert "interrupted; it takes more work to read than any of ours" in line


_IN_LITTLE_MEMORY = """\
import resource, sys
from preflight.commands import cli
resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29))
sys.exit(cli.main(sys.argv[1:]))
"""

_MANY = """CREATE TEMP TABLE n AS
WITH RECURSIVE n(x) AS (SELECT 100 UNION ALL SELECT x + 1 FROM n WHERE x < 4000) SELECT x FROM n"""
_FINDINGS = """;
INSERT INTO episodes SELECT x, check_id, about, fleet_id, outcome, text_id, first_run, last_run,
times, closed_run FROM episodes, n WHERE id = 1;
INSERT INTO verdicts SELECT x, run_id, x, outcome, text_id FROM verdicts, n WHERE id = 1;
INSERT INTO blamed SELECT 2, x FROM n"""
_SHARED = {
    "the names of a fleet": """UPDATE fleets SET nodes = hex(zeroblob(500000));
INSERT INTO runs SELECT x, nonce, fleet_id, started_s, seconds, tier, nodes, ready,
not_ready, systemic, NULL, NULL, NULL, NULL, NULL, NULL, sweep FROM runs, n WHERE id = 1""",
    "a sentence": f"UPDATE texts SET text = hex(zeroblob(500000)){_FINDINGS}",  # noqa: S608  our own
    "a GPU": """INSERT INTO gpus VALUES (1, hex(zeroblob(250)), hex(zeroblob(250)));
INSERT INTO places SELECT NULL, 1, 1, 0, 1, NULL FROM n, (SELECT x FROM n LIMIT 20)""",
}


@pytest.mark.slow
@pytest.mark.parametrize("spoil", list(_SHARED.values()), ids=list(_SHARED))
def test_a_long_text_that_many_rows_share_is_a_line(tmp_path: Path, spoil: str) -> None:
    """Of a file of 1 to 2 MB, each answer took gigabytes; 512 MiB are enough for the line."""
    place = made(tmp_path)
    kept(place, night(1, machine("h1", "not_ready"), machine("h2"), sweep="s",
                      findings=(found("a.b", "h1"),)))  # fmt: skip
    with closing(sqlite3.connect(_file(place))) as other:
        other.executescript(f"{_MANY}; {spoil}")
    assert _file(place).stat().st_size < 8 << 20
    asked = ["--history", str(tmp_path), "--json", *(["h1"] * ("INTO places" in spoil))]
    argv = [sys.executable, "-c", _IN_LITTLE_MEMORY, "history", *asked]
    ended = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=300)
    assert (ended.returncode, ended.stdout) == (4, "")
    (line,) = ended.stderr.splitlines()
    assert "move it away" in line


def test_a_long_text_behind_a_nul_is_a_line(tmp_path: Path) -> None:
    """SQLite's own length of it is 0."""
    place = made(tmp_path)
    kept(place, night(1, machine("h1")))
    with closing(sqlite3.connect(_file(place))) as other:
        other.execute("UPDATE nodes SET name = char(0) || hex(zeroblob(1000))")
        other.commit()
    with pytest.raises(HistoryError, match="the table nodes holds too much text"):
        _runs(place)


def test_a_fault_of_whoever_asks_is_not_the_historys(tmp_path: Path) -> None:
    """A full disk of his own, say."""
    place = made(tmp_path)
    kept(place, night(1, machine("h1")))

    def asks() -> None:
        with reading(place):
            raise OSError("his own")

    with pytest.raises(OSError, match="his own"):
        asks()


@pytest.mark.parametrize(
    ("typed", "error"),
    [
        ("", "is empty: give a folder"),
        ("mysql://host/db", "a history in 'mysql' is not supported"),
        ("POSTGRESQL://ann:pw@host/db", "a history in 'POSTGRESQL' is not supported"),
        ("sqlite://", "names no file: give sqlite:///DIR/history.sqlite"),
    ],
)
def test_wrong_words_for_a_place(tmp_path: Path, typed: str, error: str) -> None:
    """Each says what to type."""
    with pytest.raises(UsageError, match=error):
        parse_place(typed, tmp_path)


def test_a_server_without_its_driver_is_a_line_without_the_password(tmp_path: Path) -> None:
    """What is shown could be copied into a ticket."""
    typed = "postgresql+nosuch://user:se@c r/secret@db.invalid/nights?password=secret&x=1#secret"
    place = parse_place(typed, tmp_path)
    assert place.words == "postgresql+nosuch://db.invalid/nights"
    assert parse_place("postgresql://h/db?password=s@ecret", tmp_path).words == "postgresql://***"
    assert "secret" not in explain_refusal(place, f"invalid URI: {typed}")
    with pytest.raises(HistoryError, match="install the database's driver") as refused:
        _runs(place)
    assert "secret" not in str(refused.value)


def test_the_tables_are_sql_that_postgresql_speaks() -> None:
    """Nothing in them is SQLite's alone."""
    for table in METADATA.sorted_tables:
        ddl = str(CreateTable(table).compile(dialect=postgresql.dialect()))  # type: ignore[no-untyped-call]
        assert "WITHOUT ROWID" not in ddl
        assert "SERIAL" not in ddl


def test_a_night_is_whole_or_not_at_all(tmp_path: Path) -> None:
    """Our own fault in the middle of the second night takes both back."""
    place = made(tmp_path)
    kept(place, night(1, machine("h1")))

    def breaks() -> None:
        with writing(place) as writer:
            writer.add(night(2, machine("h1")), no_coverage_update)
            writer.add(night(3, machine("h1")), lambda _: 1 / 0)  # type: ignore[arg-type,return-value]

    with pytest.raises(ZeroDivisionError):
        breaks()
    assert _runs(place) == [f"{1:032x}"]


_ENDLESS = """ALTER TABLE runs RENAME TO r; CREATE VIEW runs AS
WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x FROM n) SELECT r.* FROM r, n"""


_GENERATED = """CREATE TABLE other AS SELECT * FROM texts; DROP TABLE texts; CREATE TABLE texts
(id INTEGER PRIMARY KEY, text GENERATED ALWAYS AS (substr(hex(zeroblob(450000000 + id)), 1, 8)));
INSERT INTO texts SELECT id FROM other; DROP TABLE other"""


@pytest.mark.parametrize(
    "spoil",
    [
        _ENDLESS,
        _GENERATED,
        _GENERATED.replace("GENERATED ALWAYS", ""),
        "CREATE TRIGGER t AFTER INSERT ON runs BEGIN DELETE FROM runs; END",
        "CREATE INDEX slow ON runs (hex(zeroblob(nodes)))",
        "CREATE INDEX slow ON runs (tier || tier)",
        "CREATE INDEX slow ON runs (tier) WHERE length(tier) > 7",
        "CREATE TABLE other (a, CHECK (length(a) > 7))",
        "CREATE TABLE other (a DEFAULT (hex(zeroblob(9))))",
        "CREATE VIRTUAL TABLE other USING fts5(a)",
    ],
)
def test_what_only_looks_like_our_tables_is_refused(tmp_path: Path, spoil: str) -> None:
    """A view or an expression may never end, and a trigger may run another user's SQL."""
    place = made(tmp_path)
    kept(place, night(0, machine("h1")))
    with closing(sqlite3.connect(_file(place))) as connection:
        connection.executescript(spoil)
    with pytest.raises(HistoryError, match="views, triggers or expressions"):
        _runs(place)
