"""Burn-in: what each tier loads, and what is made of the answers."""
