"""What every room may use: text, thresholds, statistics, files, the registry of checks."""
