"""The network between nodes, and NVLink inside them."""
