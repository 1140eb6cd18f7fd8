"""Listens for real and connects for real, so that a firewall or a squatter shows before the job."""
