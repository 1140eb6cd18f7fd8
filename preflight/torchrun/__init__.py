"""Started by the job's own torchrun: every rank is a pytest, and they meet in the job's store."""
