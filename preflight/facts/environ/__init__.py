"""What the variables of a job's environment mean, and what their values will do."""
