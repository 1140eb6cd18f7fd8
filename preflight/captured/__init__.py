"""Outputs that somebody captured on a machine, judged by the checks that judge live ones."""
