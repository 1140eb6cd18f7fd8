"""The way to a node, step by step."""
