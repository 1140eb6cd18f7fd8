"""What earlier runs measured, as plain values for planners, and the files that keep it."""
