"""render: what generated files say, and writing them without losing hand edits.

texts are the files, templating the door to Jinja and to a lab's own templates, writing the only part that touches files.
"""

from provision.render.files import (
    CONTRACTS,
    DOCKERFILE,
    ENVIRONMENT,
    SPEC,
    VIRTUAL_PACKAGES,
    WORKFLOWS,
    input_values,
    is_report,
    render_contract,
    render_dockerfile,
    render_inputs,
    render_report,
    render_spec,
    render_table,
    render_workflow,
)
from provision.render.generated import edited, pending, read, sealed, state, write
from provision.render.templates import Templates

__all__ = [
    "CONTRACTS",
    "DOCKERFILE",
    "ENVIRONMENT",
    "SPEC",
    "VIRTUAL_PACKAGES",
    "WORKFLOWS",
    "Templates",
    "edited",
    "input_values",
    "is_report",
    "pending",
    "read",
    "render_contract",
    "render_dockerfile",
    "render_inputs",
    "render_report",
    "render_spec",
    "render_table",
    "render_workflow",
    "sealed",
    "state",
    "write",
]
