"""Facts about an environment and its machine; runs where torch is missing or broken."""
