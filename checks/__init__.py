"""The checks: they judge nodes and pairs; one folder per subject."""
