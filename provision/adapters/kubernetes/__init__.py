"""Kubernetes through the user's kubectl and its configuration."""
