"""What travels to a node; here is the root of the zip, so modules are `start`, `probe.main`."""
