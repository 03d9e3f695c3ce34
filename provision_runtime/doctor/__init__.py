"""Looks for known faults of this host, and of one environment on it, without starting ranks.

Standard library only, needs no root, and changes nothing. Every probe runs in a separate process
with a deadline, so a file server or a driver that hangs costs one probe.
"""
