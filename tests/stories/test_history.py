"""Three nights of one fleet: what came, what is new, what comes again, and what cannot be kept."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests import warm
from tests.stories.conftest import clean_environment

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from tests.stories.here import Here

LONGEST_S = 60
_DB = "history.sqlite"
_BENT = (
    "from pathlib import Path\n"
    "    bent = Path('bent').read_text().split()\n"
    "    conclude(fail('bent by 3 mm, 0 allowed', advice='drain') if node.name in bent"
    " else ok('straight'))"
)


def _history(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    words = ["history", *arguments]
    return warm.run("preflight", words, cwd=folder, env=clean_environment(), timeout=LONGEST_S)


def test_three_nights_of_one_fleet(here: Here) -> None:
    """n2 is bent, then n3 as well, then n2 is mended: the history knows which of them is what."""
    here.check("site.straight", _BENT)
    nights = here.folder.parent / "nights"
    for bent, exit_code in (("n2", 1), ("n2 n3", 1), ("n3", 1)):
        (here.folder / "bent").write_text(bent)
        told = here.judge(f"--preflight-history={nights}")
        assert told.exit == exit_code, told.out
        assert "not remembered" not in told.out
    fleet = _history("--history", str(nights), folder=here.folder)
    assert fleet.returncode == 0, fleet.stderr
    lines = fleet.stdout.splitlines()
    assert max(map(len, lines[1:])) <= 80  # the first names the folder
    assert "still      n3  site.straight fail, 2 runs since " in fleet.stdout
    assert "recovered  n2  site.straight fail, 2 runs on " in fleet.stdout
    assert "worst      n2  not ready in 2 of 3 runs; last " in fleet.stdout
    assert "           n3  not ready in 2 of 3 runs; last " in fleet.stdout
    one = _history("n3", "--history", str(nights), folder=here.folder)
    assert "serial number unknown" in one.stdout
    assert "open       site.straight fail, 2 runs since " in one.stdout
    assert "bent by 3 mm, 0 allowed" in one.stdout
    worst = _history("--worst", "--json", "--history", str(nights), folder=here.folder)
    assert [row["bad"] for row in json.loads(worst.stdout)["worst"]] == [2, 2]
    nobody = _history("n9", "--history", str(nights), folder=here.folder)
    assert (nobody.returncode, nobody.stdout) == (4, "")
    assert f"no run in {nights / _DB} had a node 'n9'; known: n1, n2, n3" in nobody.stderr
    empty = _history("--history", "elsewhere", folder=here.folder)
    assert (empty.returncode, "no run is stored here" in empty.stdout) == (5, True)
    far = _history("--history", "/".join(["elsewhere"] * 5), folder=here.folder)
    assert max(map(len, far.stdout.splitlines())) <= 80


def test_a_damaged_history_changes_no_verdict(here: Here) -> None:
    """The run says so before it measures and when it ends; its exit code is the fleet's."""
    here.check("site.straight", _BENT)
    (here.folder / "bent").write_text("")
    nights = here.folder.parent / "nights"
    nights.mkdir()
    (nights / _DB).write_bytes(b"no database at all" * 300)
    told = here.judge(f"--preflight-history={nights}")
    assert told.exit == told.report["exit"] == 0
    words = " ".join(told.out.split())
    assert words.count(f"cannot use the history {nights}/{_DB}: ") == 2
    assert "; this run is not remembered" in words
    assert "Traceback" not in told.out + told.err


def test_without_a_history_no_database_is_loaded(here: Here) -> None:
    """Whoever keeps none does not pay for the library; shown in a Python of its own."""
    here.check(
        "site.light",
        "import sys\n    heavy = 'sqlalchemy' in sys.modules\n"
        "    conclude(fail('heavy', advice='x') if heavy else ok('light'))",
    )
    assert here.judge(env={"PYTHONNOUSERSITE": "1"}).exit == 0
