"""Burn-in: what each tier loads on a node, and how its answers are judged."""
