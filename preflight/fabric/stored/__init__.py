"""Samples of past nights, read from files that may be cut off, absurd or hostile."""

from preflight.fabric.stored.reading import (
    VERSION,
    Form,
    Stored,
    encode_observed,
    encode_sweep,
    read_stored,
    stored_in,
)

__all__ = [
    "VERSION",
    "Form",
    "Stored",
    "encode_observed",
    "encode_sweep",
    "read_stored",
    "stored_in",
]
