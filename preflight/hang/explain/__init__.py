"""A dead job's log: the first failure in time among its echoes, and what it means."""
