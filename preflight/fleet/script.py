"""The training script that the operator names: read once, and never run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preflight.errors import UsageError
from preflight.fleet.files import read_regular
from preflight.lint.lint import Linted, lint
from preflight.lint.reading import LARGEST

if TYPE_CHECKING:
    from pathlib import Path


def lint_file(path: Path) -> Linted:
    """Read and judge one file; UsageError where there is none to read."""
    try:
        content = read_regular(path.expanduser(), LARGEST)
    except OSError as error:
        said = f"cannot read {path}: {error.strerror}"
        raise UsageError(f"{said}; give the training script itself") from error
    return lint(content, str(path))
