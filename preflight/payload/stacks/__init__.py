"""Reads the state of a hanging job on one node, without disturbing the job."""

from typing import Any, Dict

Document = Dict[str, Any]
"""A part of the answer."""
