"""The controller's side of relays: they call back, prove who they are, and run our commands."""
