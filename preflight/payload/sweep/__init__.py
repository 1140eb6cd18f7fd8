"""Measures all-reduces between every scheduled pair of nodes; stdlib and the job's own torch.

A node's processes, each forked by the one before: the agent (`main`, `agent`) talks with the
controller; one supervisor for each rail (`supervisor`) replaces what hangs; the measuring process
(`member`, `pair`) meets the others (`process_groups`), times (`clocks`), verifies (`verify`) and
finds out what carried the data (`transports`); two more processes read its counters (`counters`).
"""
