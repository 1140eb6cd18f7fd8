"""pytest's side of a run: options, items, xdist, and the record of the run."""
