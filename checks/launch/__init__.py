"""The launch line and the training script."""
