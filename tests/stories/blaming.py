"""`preflight blame` in a real subprocess, as a person would run it."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema

from tests import warm

SCHEMA = json.loads(
    (Path(__file__).parents[2] / "docs" / "reference" / "blame.schema.json").read_text()
)
LONGEST_S = 120


@dataclass(frozen=True)
class Blamed:
    """What came of it."""

    exit: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """What --json printed, held to its schema."""
        content: dict[str, Any] = json.loads(self.out)
        jsonschema.validate(content, SCHEMA)
        return content

    @property
    def found(self) -> list[str]:
        """Whom it names."""
        return [name for one in self.document["findings"] for name in one["subjects"]]


def blame(samples: Path, *arguments: str, as_json: bool = True) -> Blamed:
    """Judge stored samples again."""
    words = ["blame", str(samples), *arguments] + ["--json"] * as_json
    done = warm.run("preflight", words, cwd=Path.cwd(), env=os.environ, timeout=LONGEST_S)
    return Blamed(done.returncode, done.stdout, done.stderr)
