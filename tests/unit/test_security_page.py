"""SECURITY.md promises nothing that no test attacks."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "SECURITY.md").read_text()


def test_every_promise_has_a_test_that_exists() -> None:
    """Each row of its tables names one, by file and function; a row begins with its promise."""
    rows = re.findall(r"^\| ([A-Z].*?) \| (.*) \|$", PAGE, re.MULTILINE)
    assert len(rows) > 20
    for promise, tests in rows:
        file, known = None, 0
        for name, function in re.findall(r"`([\w/]*\.py)?(?:::(test_\w+))?`", tests):
            if not name and not function:
                continue
            file = ROOT / "tests" / name if name else file
            assert file is not None, promise
            assert f"def {function}" in file.read_text(), f"{name}::{function} of: {promise}"
            known += 1
        assert known or "make " in tests, f"no test holds: {promise}"
