"""A fabric made up, with faults that are known: how often the decoder is right is counted on it.

Nothing here knows how the decoder decides. Both share the format of samples and digests alone; the
simulation has quantiles, tests and thresholds of its own.
"""
