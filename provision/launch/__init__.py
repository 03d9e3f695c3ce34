"""A stage of the host: how jobs, environments and images are started, and what they require to run,
each requirement with its reason, in the terms of each engine and scheduler.
"""

from provision.launch.contract import (
    KUBERNETES_FORMATS,
    PREFIX_FORMATS,
    RUN_FORMATS,
    JobFormat,
    RunFormat,
    check_contract,
    contract_context,
    dns_label,
)
from provision.launch.durations import parse_duration
from provision.launch.jobs import (
    Environment,
    HostTarget,
    ImageEnvironment,
    JobSpec,
    KubernetesOptions,
    NodeRequirement,
    PrefixEnvironment,
    SlurmOptions,
    SquashfsEnvironment,
    SshOptions,
    check_job,
)
from provision.launch.kubernetes import key_secret, parse_resource, parse_selector
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
from provision.launch.slurm import parse_option

__all__ = [
    "KUBERNETES_FORMATS",
    "PREFIX_FORMATS",
    "RUN_FORMATS",
    "TOKEN_VARIABLE",
    "ContainerMount",
    "Environment",
    "HostTarget",
    "ImageEnvironment",
    "JobFormat",
    "JobSpec",
    "KubernetesOptions",
    "NodeRequirement",
    "NotebookServer",
    "PrefixEnvironment",
    "RunFormat",
    "RunOptions",
    "SlurmOptions",
    "SquashfsEnvironment",
    "SshOptions",
    "check_contract",
    "check_job",
    "contract_context",
    "dns_label",
    "docker_arguments",
    "find_notebook_server",
    "key_secret",
    "parse_duration",
    "parse_mount",
    "parse_option",
    "parse_resource",
    "parse_selector",
    "parse_user",
    "run_requirements",
]
