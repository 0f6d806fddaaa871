"""The engine: the loop, schedules, averaged weights, checkpoints, devices, progress."""
