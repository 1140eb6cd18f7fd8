"""After a hang or a crash: which rank, where, and why, from what the job left behind."""
