"""The machine around the GPUs: limits, memory, disks, processes, its kernel log."""
