"""A short, hard load on every device of a node, in processes that can be killed one by one."""
