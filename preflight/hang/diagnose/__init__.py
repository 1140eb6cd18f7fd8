"""What a job that hangs now shows, and whom it waits for."""
