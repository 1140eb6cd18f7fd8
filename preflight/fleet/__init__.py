"""The fleet: its nodes, what is expected of them, and the job that is to start."""
