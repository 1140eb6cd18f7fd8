"""Finds mistakes in a training script for many ranks from its text; no part of it is run."""
