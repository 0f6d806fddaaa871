"""Numbers from a trained model: accuracy, OOD detection, angles, variance."""
