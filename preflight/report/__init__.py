"""What people and machines read: the terminal, report.json, ready.hosts, the exit code."""
