"""render: the texts of generated files, and writing them without losing anybody's edits.

`files` renders and writes each file, `templates` owns Jinja and a lab's own templates.
"""

from provision.core.paths import ENVIRONMENT, SPEC, VIRTUAL_PACKAGES
from provision.render.files import (
    CONTRACTS,
    DOCKERFILE,
    HEALTH_CHECK,
    LAB_REPORT,
    MOUNT_SCRIPT,
    MOUNT_UNIT,
    NODES_REPORT,
    REPORT,
    WORKFLOW,
    changed_files,
    edited_files,
    file_state,
    is_report_page,
    read_text,
    render_contract,
    render_dockerfile,
    render_inputs,
    render_node_script,
    render_report,
    render_spec,
    render_workflow,
    require_unedited,
    with_header,
    write_files,
)
from provision.render.templates import Templates
