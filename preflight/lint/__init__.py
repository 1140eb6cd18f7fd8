"""What a training script will do on many ranks, read from its text: nothing of it is ever run."""
