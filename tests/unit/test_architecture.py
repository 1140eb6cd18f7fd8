"""docs/internals/architecture.md tells of the rooms that are there."""

from __future__ import annotations

import re

from tests.architecture import PAGE, ROOT, page


def test_the_table_of_rooms_is_what_the_code_says() -> None:
    """Written anew by `python -m tests.architecture`."""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_every_file_that_the_pages_name_exists() -> None:
    """A page that names a moved file sends its reader nowhere."""
    for name in ("CONTRIBUTING.md", "docs/internals/architecture.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        named = re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.(?:py|md))`", text)
        places = (ROOT, ROOT / "preflight")
        assert named
        assert [each for each in named if not any((at / each).exists() for at in places)] == []
