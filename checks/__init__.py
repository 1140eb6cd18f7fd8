"""All judgement of nodes and pairs, a folder per subject."""
