"""What runs on a node. This folder is the root of the zip, so modules are `start`, `probe.main`."""
