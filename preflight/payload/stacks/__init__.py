"""What a job that hangs shows of itself on one node; read without disturbing it."""
