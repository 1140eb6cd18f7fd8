"""One run: its stages in their order, who takes part in each, and what is judged."""
