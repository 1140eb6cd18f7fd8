"""The variables of the job's environment."""
