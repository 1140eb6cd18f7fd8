"""A small native program for a state that Python cannot reach by itself."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

STUCK = """
#define _GNU_SOURCE
#include <stdio.h>
#include <unistd.h>
/* The parent of vfork sleeps uninterruptibly (state D) until its child execs or ends. */
int main(void) { if (vfork() == 0) { pause(); _exit(0); } return 0; }
"""


def compiled(source: str, into: Path) -> Path:
    """Compile a program; skips the test where there is no compiler."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    program = into / "program"
    subprocess.run(["gcc", "-o", program, "-x", "c", "-"], input=source, text=True, check=True)
    return program
