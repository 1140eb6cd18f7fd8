"""The network between nodes: who is paired when, what was measured, and who is to blame."""
