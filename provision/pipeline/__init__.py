"""The stages of a build. Each takes the product before it and returns its own; none imports another."""
