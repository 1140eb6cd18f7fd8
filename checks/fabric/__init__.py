"""The network between nodes, and NVLink inside of them."""
