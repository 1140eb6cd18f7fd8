"""Robust statistics that everything shares which compares a machine with its peers."""
