"""A report that may leave the house: what names hosts, users and hardware is replaced, alike."""
