"""`preflight nightly`: a whole fleet, some idle nodes at a time, night after night."""
