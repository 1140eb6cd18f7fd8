"""Whether a node can be reached, step by step."""
