"""Images in registries, by the OCI distribution specification 1.1: nothing that is there already is
sent or fetched again, and an interrupted transfer is resumed.

reference is the place that a user writes, client the requests and who we are, manifest what a
registry's documents must be; push, pull and referrers are what we do with them. Credentials are
Docker's own (its config file and helpers). This machine's own names are accessed through plain
HTTP, as Docker does.
"""
