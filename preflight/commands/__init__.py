"""The verbs of the `preflight` command that are more than a page of code, a module each."""
