"""The scheduler's hook: judges this node in seconds (prolog, health check) and may drain it."""
