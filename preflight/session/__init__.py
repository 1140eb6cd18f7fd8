"""pytest's side of a run: options, items, xdist, and what is remembered of it."""
