"""What a launch's environment gets: evidence for nothing, and never in place of the user's own."""

from __future__ import annotations

import shlex
import subprocess
from typing import TYPE_CHECKING

import pytest

from preflight.commands.watch import split
from preflight.hang.watch.evidence import plan, set_in_files

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def _added(
    environ: Mapping[str, str], folder: str = "/w", debug: str = "", *, pipes: bool = False
) -> dict[str, str]:
    chosen = frozenset(filter(None, debug.split(",")))
    return plan(environ, {}, folder, chosen, pipes=pipes).environ({})


def test_what_costs_nothing() -> None:
    """The recorder with its file, NCCL's warnings and torchrun's error files in the folder."""
    assert _added({}) == {
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_FR_DUMP_TEMP_FILE": "/w/recorder/rank_",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/w/recorder/rank_",
        "NCCL_DEBUG": "WARN",
        "NCCL_DEBUG_FILE": "/w/nccl/%h.%p.log",
        "PET_LOG_DIR": "/w/torchrun",
        "PYTHONFAULTHANDLER": "1",
    }


def test_pipes_only_where_they_can_be_made() -> None:
    """A rank that cannot make its pipe ends: it is asked for where that was tried."""
    assert _added({}, pipes=True)["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] == "/w/recorder/rank_"


def test_without_a_folder() -> None:
    """Nothing points to files, and NCCL does not speak into the launch's own output."""
    assert set(_added({}, folder="")) == {
        "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DUMP_ON_TIMEOUT",
        "PYTHONFAULTHANDLER",
    }  # fmt: skip


def test_an_older_name_is_the_users_word_too() -> None:
    """The newer name would win over it, so it is not set; what else there is, is."""
    added = _added({"TORCH_NCCL_TRACE_BUFFER_SIZE": "0", "TORCH_FR_DUMP_TEMP_FILE": "/mine_"})
    assert {"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"}.isdisjoint(added)
    assert {"TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"}.isdisjoint(added)
    assert added["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "1"


@pytest.mark.parametrize("debug", ["", "nccl,dist"])
def test_who_reads_nccl_keeps_reading_it(debug: str) -> None:
    """A level of the user's, or of NCCL's own file, keeps its lines where they are."""
    assert not {name for name in _added({"NCCL_DEBUG": ""}, debug=debug) if name.startswith("NCCL")}
    in_file = {"NCCL_DEBUG": ("INFO", "/etc/nccl.conf")}
    decided = plan({}, in_file, "/w", frozenset({"nccl"}))
    assert [left.sentence for left in decided.left] == [
        "NCCL_DEBUG=INFO of /etc/nccl.conf is left as it is",
        "NCCL_DEBUG=INFO of /etc/nccl.conf is left as it is, and NCCL_DEBUG_FILE not set",
        "NCCL_DEBUG=INFO of /etc/nccl.conf is left as it is, and NCCL_DEBUG_SUBSYS not set",
    ]


def test_debug() -> None:
    """Everything, in files of each rank; a per cent in the folder's name is no field of NCCL's."""
    added = _added({}, folder="/w/100%h", debug="nccl,dist")
    assert (added["NCCL_DEBUG"], added["NCCL_DEBUG_SUBSYS"]) == ("INFO", "ALL")
    assert added["NCCL_DEBUG_FILE"] == "/w/100%%h/nccl/%h.%p.log"
    assert (added["TORCH_DISTRIBUTED_DEBUG"], added["TORCH_CPP_LOG_LEVEL"]) == ("DETAIL", "INFO")
    assert added["PET_TEE"] == "2"
    assert "PET_TEE" not in _added({"PET_REDIRECTS": "3"}, debug="dist")


def test_nccls_own_files(tmp_path: Path) -> None:
    """The user's wins over the system's; comments and nonsense are none."""
    own = tmp_path / ".nccl.conf"
    own.write_bytes(b"#NCCL_DEBUG=TRACE\nNCCL_DEBUG=INFO\nno setting\n\xff=\n")
    assert set_in_files({"HOME": str(tmp_path)})["NCCL_DEBUG"] == ("INFO", str(own))
    assert set_in_files({"NCCL_CONF_FILE": str(tmp_path / "none")}) == set_in_files({})


def test_the_launch_is_behind_the_first_dashes() -> None:
    """`--debug --` is not given the launch, and the launch keeps its own dashes."""
    assert split(["--debug", "--", "torchrun", "t.py", "--", "--debug"]) == (
        ["--debug"],
        ("torchrun", "t.py", "--", "--debug"),
    )
    assert split(["torchrun"]) == (["torchrun"], ())


def test_the_exports_are_a_shells(tmp_path: Path) -> None:
    """A value with a quote and a blank arrives as it is."""
    from preflight.commands.watch import _exports
    from preflight.hang.watch.wrapper import Options

    folder = tmp_path / "it's here"
    lines = "\n".join(_exports(Options((), folder)))
    script = f'{lines}\nprintf %s "$TORCH_FR_DUMP_TEMP_FILE"'
    printed = subprocess.run(
        ["sh", "-c", script], capture_output=True, text=True, check=True
    ).stdout
    assert printed.startswith(f"{folder}/watch-")
    assert printed.endswith("/recorder/rank_")
    assert (folder / printed.removeprefix(f"{folder}/")).parent.is_dir(), shlex.quote(printed)


def test_a_folder_that_is_there_already_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who made it could have links in it that lead elsewhere: no variable is exported."""
    from preflight.commands.watch import _exports
    from preflight.hang.watch.wrapper import Options

    monkeypatch.setattr("preflight.commands.watch.folder_name", lambda: "watch-1")
    (tmp_path / "watch-1").mkdir()
    script = (
        "\n".join(_exports(Options((), tmp_path))) + '\nprintf "<%s>" "$TORCH_FR_DUMP_TEMP_FILE"'
    )
    printed = subprocess.run(
        ["sh", "-c", script], env={}, capture_output=True, text=True, check=True
    )
    assert printed.stdout == "<>"
    assert "exists" in printed.stderr
