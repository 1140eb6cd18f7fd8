"""Reads the state of a hanging job on one node, without disturbing the job."""
