"""A hang or a crash: watched while it happens (watch), explained afterwards (diagnose, explain)."""
