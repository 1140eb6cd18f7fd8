"""Files of samples, changed as a test wants, and what the reader says of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from preflight.errors import UsageError
from preflight.fabric.observed import observe
from preflight.fabric.stored import encode_observed, encode_sweep, read_stored
from tests.unit.fabric.synthetic import hosts, sweep

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


SWEPT = sweep(hosts(4), lambda a, b: 0.05 if "h3" in (a, b) else 1.0)

Change = "Callable[[dict[str, Any]], Any]"


def long_form(change: Callable[[dict[str, Any]], Any] = lambda _document: None) -> bytes:
    """The sweep of four nodes as a document, changed."""
    document = json.loads(encode_sweep(SWEPT))
    change(document)
    return json.dumps(document).encode()


def short_form(change: Callable[[dict[str, Any]], Any]) -> bytes:
    """The same, condensed."""
    document = json.loads(encode_observed(observe(SWEPT)))
    change(document)
    return json.dumps(document).encode()


def refused(folder: Path, content: bytes) -> str:
    """What the reader says of a file; that it is one line that names it, and no more."""
    path = folder / "samples.json"
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        read_stored(path)
    message = str(caught.value)
    assert message.startswith((f"{path}", f"cannot read {path}"))
    assert len(message.splitlines()) == 1
    assert len(message) < len(str(path)) + 400
    return message.removeprefix(f"{path}").removeprefix(": ")
