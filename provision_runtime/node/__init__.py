"""What runs on a node of a cluster: standard library, Python 3.8. Its modules are fed to the node's
own Python over stdin (`provision/cluster/program.py`), and nothing of them is left there.
"""
