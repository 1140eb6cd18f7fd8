"""Slurm's own launcher as a way in: one step over the whole fleet, no keys needed."""
