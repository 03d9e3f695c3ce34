"""Refreshes provision/catalog/data from what wheels say about themselves: their names and their
metadata. For maintainers: `provision facts update --from-index` does the same for a lab's facts.

    nox -s update_data                       # shows what would change, as a diff
    nox -s update_data -- --write
    nox -s update_data -- --release 2.15.0 --check

provision/workflow/index_facts.py reads an index and says what follows; refresh.py asks it for the
releases of the table, compare.py holds that against the table, document.py changes the file and keeps
its comments and order. What stands in the table from another source is never changed.
"""
