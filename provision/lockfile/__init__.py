"""environment.yml + virtual-packages.yml -> conda-lock.yml (v1).

What commands need is named here: the inputs (input_files), the packages that satisfy them
(joint_solve, lock_change), the check that torch is the requested build (cuda_guard), and the
lock file itself (conda_lock_v1), which can be verified, compared, updated and exported.
"""

from provision.core.paths import ENVIRONMENT, VIRTUAL_PACKAGES
from provision.lockfile.completeness import require_complete, require_no_editables
from provision.lockfile.conda_lock_v1 import (
    FILE,
    LockFile,
    compose,
    read,
    read_file,
    read_platforms,
    require_this_platform,
)
from provision.lockfile.cuda_guard import guard
from provision.lockfile.differences import LockDiff, describe_diff, diff_locks
from provision.lockfile.export import (
    ExportFormat,
    export_lock,
    export_platforms,
    main_entries,
    omitted_entries,
    sbom_parts,
)
from provision.lockfile.input_files import LockInputs, read_inputs
from provision.lockfile.joint_solve import LocalPythonChannel, solve
from provision.lockfile.lock_change import change, update
from provision.lockfile.verify import VerifyReport, verify_lock
