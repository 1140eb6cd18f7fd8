"""The sockets of a job: interfaces, names, ports."""
