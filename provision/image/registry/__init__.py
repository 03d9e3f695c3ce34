"""Images in registries, by the OCI distribution specification 1.1: nothing that is there already is
sent or fetched again, and an interrupted transfer is resumed.

reference is what a user writes, client the requests and the login; push, pull and referrers are what
we do with them. Credentials are Docker's (its config file and helpers). Names of this machine are
accessed through plain HTTP, as Docker does.
"""
