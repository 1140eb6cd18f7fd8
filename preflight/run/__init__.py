"""One run: its stages in order, the nodes that take part in each, and what is judged."""
