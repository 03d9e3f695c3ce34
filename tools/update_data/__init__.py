"""Refreshes provision/catalog/data from what wheels say about themselves: their names and their
metadata. Not part of the package.

    nox -s update_data                       # shows what would change, as a diff
    nox -s update_data -- --write
    nox -s update_data -- --release 2.15.0 --check

index.py reads an index (names and metadata, never a wheel), wheels.py says what follows from them,
compare.py holds that against the table, document.py changes the file and keeps its comments and
order. What stands in the table from another source is never changed.
"""
