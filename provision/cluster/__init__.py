"""A stage of the host: which nodes are meant, how each is reached, and what each replies."""
