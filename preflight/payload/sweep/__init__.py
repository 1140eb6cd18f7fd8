"""Measures all-reduces between every scheduled pair of nodes; stdlib and the job's own torch."""
