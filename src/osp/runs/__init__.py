"""The run folder: readable without torch."""
