"""A wrapper around a launch: evidence of a hang before it is gone, and nothing else changed."""
