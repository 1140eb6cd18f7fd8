"""From samples to culprits: which parts of a fabric are at fault, and what could not be seen.

`find` is the way in. Hard failures, shifts (slow, latency) and events (spikes, late hosts) each
have a model of what a healthy observation looks like; one greedy search explains what is left over
by the fewest parts, and takes what a fault explains off its partners.
"""
