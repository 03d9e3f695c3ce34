"""Each verb as a short list of stages: the only package that knows their order."""
