"""Proves a GPU fleet fit before the training job starts, and names the culprit when not."""

__version__ = "0.2.0"
