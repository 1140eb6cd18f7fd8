"""Proves a GPU fleet fit before a training job starts, and names the culprit when it is not."""

__version__ = "0.2.0"
