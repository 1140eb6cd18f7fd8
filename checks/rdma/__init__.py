"""RDMA devices and their ports: how many, how fast, with how many errors."""
