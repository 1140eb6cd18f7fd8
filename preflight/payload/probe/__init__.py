"""Reads everything that a node can report about itself in one pass, without load."""
