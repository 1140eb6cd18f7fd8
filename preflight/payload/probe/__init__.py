"""Everything a node can say about itself in one pass, without loading it."""
