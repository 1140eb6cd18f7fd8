"""Who the nodes are, what is expected of them, and the job that is to start."""
