"""What the tools of a node print, for a capture."""
