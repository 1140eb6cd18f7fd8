"""The JSON Schema of a document, as docs/reference has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from msgspec import Struct


def schema_of(kind: type[Struct], title: str) -> dict[str, Any]:
    """Describe a document."""
    (root,), definitions = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        **root,
        "$defs": definitions,
    }
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(schema))
    return plain
