"""The run folder: all but checkpoints readable without torch."""
