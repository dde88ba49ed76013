"""Training of the built-in vision model: `python -m tools.train_vision.<stage>`."""
