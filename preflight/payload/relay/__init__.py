"""Runs the controller's commands on a node that was reached through Slurm instead of a login."""
