"""Each error of the table of ways to fail has its words, and the code gives all that they need."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path
from string import Formatter

FOLDER = Path(__file__).parents[3] / "preflight" / "transport"
TABLE = tomllib.loads((FOLDER / "reach_errors.toml").read_text())


def needed(kind: str) -> set[str]:
    """The names that its sentence and advice have in braces."""
    texts = (TABLE[kind]["sentence"], TABLE[kind]["advice"])
    fields = (field for text in texts for _, field, _, _ in Formatter().parse(text) if field)
    return {field.partition(".")[0] for field in fields}


def test_every_error_is_made_with_the_values_that_its_words_need() -> None:
    """A value that lacks would break the error itself; a kind that nothing names is dead."""
    every = [each for path in FOLDER.glob("*.py") for each in ast.walk(ast.parse(path.read_text()))]
    assert set(TABLE) <= {each.value for each in every if isinstance(each, ast.Constant)}
    for each in every:
        if isinstance(each, ast.Call) and ast.unparse(each.func) == "reach_error":
            given = {str(one.arg) for one in each.keywords}
            kind = each.args[0]
            if isinstance(kind, ast.Constant):
                assert needed(str(kind.value)) == given, kind.value
