"""The scheduler's hook: this node judged in seconds, for a prolog or a periodic health check."""
