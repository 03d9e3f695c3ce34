"""provision: one line becomes a locked, installed, imaged, smoke-tested and registered PyTorch environment."""

__version__ = "0.2.0"
