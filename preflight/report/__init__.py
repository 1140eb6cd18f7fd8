"""The results of a run: the terminal, report.json, ready.hosts, the exit code."""
