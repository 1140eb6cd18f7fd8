"""What runs on a node. This folder is the root of its zip: imports read `start`, `probe.main`."""
