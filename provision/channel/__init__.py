"""Local conda channels: this machine's Python (host_python), and mirrors of everything that locks
name, for closed networks (mirror).
"""

from provision.channel.host_python import (
    HostPython,
    HostPythonChannel,
    bootstrap,
    host_minor,
    read_host_python,
)
