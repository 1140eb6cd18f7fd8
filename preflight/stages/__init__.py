"""What is done to the fleet, one file per stage; each measures everyone at once."""
