"""Devices under load."""
