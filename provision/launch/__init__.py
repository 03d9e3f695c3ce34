"""A stage of the host: how jobs, environments and images are started, and what they require to run,
each requirement with its reason, in the terms of each engine and scheduler.
"""

from provision.launch.contract import (
    FILE_FORMATS,
    PREFIX_FORMATS,
    RUN_FORMATS,
    FileFormat,
    JobFormat,
    RunFormat,
    check_contract,
    contract_context,
    dns_label,
    file_context,
    rank_command,
)
from provision.launch.durations import parse_duration
from provision.launch.jobs import (
    HANG_AFTER_S,
    Environment,
    ImageEnvironment,
    JobSpec,
    KubernetesOptions,
    NodeRequirement,
    OnHang,
    PrefixEnvironment,
    SlurmOptions,
    SquashfsEnvironment,
    SshOptions,
    check_job,
)
from provision.launch.kubernetes import (
    GPU_PRODUCT,
    MIG,
    key_secret,
    parse_annotation,
    parse_resource,
    parse_selector,
)
from provision.launch.quantities import parse_gpus, parse_memory, parse_variables
from provision.launch.run_spec import (
    TOKEN_VARIABLE,
    ContainerMount,
    NotebookServer,
    RunOptions,
    docker_arguments,
    find_notebook_server,
    parse_mount,
    parse_user,
    run_requirements,
)
from provision.launch.slurm import check_array, is_job, log_pattern, parse_option
