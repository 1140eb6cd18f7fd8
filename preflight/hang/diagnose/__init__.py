"""Diagnoses a job that hangs now: which ranks, node or path it waits for."""
