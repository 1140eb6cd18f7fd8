"""Proves that a GPU fleet is ready before a training job starts, and names the culprit if not."""

__version__ = "0.2.0"
