"""`provision launch` and `provision jobs` with a kubectl that records what it is asked and answers as a
server would."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from provision.cli.main import cli
from tests.programs import write_program

SPEC = "torch: '2.3'\ncuda: '12.1'\npython: '3.11'\npython_from: channel\n"
NODES = {
    "items": [
        {
            "metadata": {
                "name": f"node{number}",
                "labels": {"kubernetes.io/hostname": f"k{number}"},
            },
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        }
        for number in (1, 2)
    ]
}
JOBS = {
    "items": [
        {
            "metadata": {"name": "train-1a2b3c", "namespace": "lab"},
            "spec": {"completions": 2, "suspend": True},
            "status": {},
        }
    ]
}
# By its digest, so that no registry is asked.
IMAGE = f"host/toy@sha256:{'ab' * 32}"
# Refuses what it does not know: the test then fails instead of passing by accident.
KUBECTL = """\
#!/bin/sh
echo "$@" >> {folder}/calls
case "$*" in
  *"get nodes"*) cat {folder}/nodes.json ;;
  *"get jobs"*) cat {folder}/jobs.json ;;
  *"get -f"*) cat {folder}/created.json ;;
  *"create -f"*)
    if [ -e {folder}/refusal ]; then cat {folder}/refusal >&2; exit 1; fi
    case "$*" in
      *"create -f - --dry-run"*) cat >/dev/null ;;
      *"create -f - "*)
        if [ -e {folder}/no-secrets ]; then echo forbidden >&2; exit 1; fi
        cat > {folder}/secret.json ;;
    esac
    for word in "$@"; do case $word in */job.yaml) cp "$word" {folder}/created.yaml ;; esac; done ;;
  *api-versions*) cat {folder}/api-versions ;;
  *"auth can-i"*jobsets.jobset.x-k8s.io*) cat {folder}/can-i; grep -q yes {folder}/can-i ;;
  *"get pods"*) cat {folder}/pods.json ;;
  *"logs train-1a2b3c-0"*) echo step 100 ;;
  *"logs --follow"*) echo "[pod/train-1a2b3c-0-abc] step 100" ;;
  *"delete jobs,services"*) echo 'job.batch "train-1a2b3c" deleted' ;;
  *) echo "unexpected: $*" >&2; exit 1 ;;
esac
"""


SINFO = """\
#!/bin/sh
case "$*" in
  *"%N|%n"*) echo 'n1|n1|n1|idle|(null)|gpu:8|64|1000|gpu|none' ;;
  *"%a|%l|%s"*) echo 'up|infinite|1-infinite' ;;
  *"-h -o %R") echo gpu ;;
  *) echo "unexpected: $*" >&2; exit 1 ;;
esac
"""


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with what the recording kubectl answers, and what it was asked (`calls`)."""
    folder = tmp_path / "kubectl"
    folder.mkdir()
    script = folder / "kubectl"
    write_program(script, KUBECTL.format(folder=shlex.quote(str(folder))))
    write_program(folder / "sinfo", SINFO)
    (folder / "nodes.json").write_text(json.dumps(NODES))
    (folder / "jobs.json").write_text(json.dumps(JOBS))
    (folder / "created.json").write_text(
        json.dumps({"items": [created("Service"), created("Job")]})
    )
    (folder / "api-versions").write_text("batch/v1\n")
    (tmp_path / "envs" / "toy").mkdir(parents=True)
    (tmp_path / "envs" / "toy" / "spec.yml").write_text(SPEC)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("PROVISION_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    return folder


def created(kind: str) -> dict[str, object]:
    """An object of a manifest, as the server has it."""
    metadata = {"name": "lab-train", "uid": f"uid-of-{kind}"}
    return {"apiVersion": "batch/v1" if kind == "Job" else "v1", "kind": kind, "metadata": metadata}


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, list(words))


LAUNCH = ("launch", "toy", "--on", "k8s:pool=h100", "--image", IMAGE, "--nodes", "2")


def test_a_job_is_checked_by_the_server_and_created(kubectl: Path) -> None:
    result = run(*LAUNCH, "--gpus", "8", "--namespace", "lab", "--", "-m", "lab.train")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("submitted: job k8s:lab-train-")
    calls = (kubectl / "calls").read_text().splitlines()
    creations = [call for call in calls if "create -f" in call]
    assert ["--dry-run=server" in call for call in creations] == [True, True, False, False]
    assert all("--namespace=lab" in call for call in calls if "create -f" in call)
    service, job = yaml.safe_load_all((kubectl / "created.yaml").read_text())
    assert service["metadata"]["name"] == job["metadata"]["name"]
    [term] = job["spec"]["template"]["spec"]["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [{"key": "pool", "operator": "In", "values": ["h100"]}]


def test_the_pods_get_their_key_from_a_secret_that_the_job_owns(kubectl: Path) -> None:
    run(*LAUNCH, "--", "-m", "lab.train")
    secret = json.loads((kubectl / "secret.json").read_text())
    key = secret["stringData"]["key"]
    assert len(key) == 64
    assert secret["metadata"]["ownerReferences"] == [
        {"apiVersion": "batch/v1", "kind": "Job", "name": "lab-train", "uid": "uid-of-Job"}
    ]
    manifest = (kubectl / "created.yaml").read_text()
    *_, job = yaml.safe_load_all(manifest)
    variables = job["spec"]["template"]["spec"]["containers"][0]["env"]
    assert variables[-1] == {
        "name": "PROVISION_JOB_KEY",
        "valueFrom": {"secretKeyRef": {"name": secret["metadata"]["name"], "key": "key"}},
    }
    assert key not in manifest + (kubectl / "calls").read_text()
    run(*LAUNCH, "--", "-m", "lab.train")
    assert json.loads((kubectl / "secret.json").read_text())["stringData"]["key"] != key


def test_a_job_whose_key_cannot_be_stored_is_deleted(kubectl: Path) -> None:
    (kubectl / "no-secrets").touch()
    result = run(*LAUNCH, "--", "-m", "lab.train")
    assert result.exit_code == 3
    assert "forbidden" in result.output
    assert "delete jobs,services" in (kubectl / "calls").read_text().splitlines()[-1]


def test_a_job_of_one_node_has_no_key(kubectl: Path) -> None:
    result = run(*LAUNCH[:-2], "--", "-m", "lab.train")
    assert result.exit_code == 0, result.output
    assert not (kubectl / "secret.json").exists()
    assert "PROVISION_JOB_KEY" not in (kubectl / "created.yaml").read_text()


def test_dry_run_prints_and_creates_nothing(kubectl: Path) -> None:
    result = run(*LAUNCH, "--dry-run", "--", "hostname")
    assert result.exit_code == 0, result.output
    assert "create" not in (kubectl / "calls").read_text()
    assert "kind: Service" in result.stdout


@pytest.mark.parametrize("on", [("--on", "k8s:pool=h100", "--image", IMAGE), ("--on", "slurm:gpu")])
def test_a_jobs_text_holds_no_credential(kubectl: Path, on: tuple[str, ...]) -> None:
    """Whoever may read the queue could read it."""
    words = ("launch", "toy", *on, "--gpus", "2", "--dry-run", "--", "echo")
    refused = run(*words, "--data", "https://u:s3cr3t@h.example/x")
    assert refused.exit_code == 3 and "a password or token" in refused.stderr
    assert "s3cr3t" not in refused.output
    allowed = run(*words, "--data", "https://h.example/x?token=${TOKEN}")
    assert allowed.exit_code == 0 and "${TOKEN}" in allowed.stdout


def test_dry_run_needs_the_engine_that_it_is_for(
    kubectl: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes, GPUs and cores are not assumed."""
    (kubectl / "kubectl").unlink()
    (kubectl / "sinfo").unlink()
    monkeypatch.setenv("PATH", str(kubectl))
    result = run(*LAUNCH, "--dry-run", "--", "hostname")
    assert result.exit_code == 9 and "no `kubectl` on this machine" in result.stderr
    result = run("launch", "toy", "--on", "slurm:gpu", "--dry-run", "--", "hostname")
    assert result.exit_code == 9 and "no `sinfo` on this machine" in result.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("ship", "tyo", "--on", "ssh:n1"),
        ("activate", "tyo", "--on", "ssh:n1"),
        ("rollback", "tyo", "--on", "ssh:n1"),
        ("drift", "tyo", "--on", "ssh:n1"),
        ("launch", "tyo", "--on", "k8s:gpu", "--image", "lab/x:1", "--", "hostname"),
        ("smoke", "tyo"),
    ],
)
def test_mistyped_environment(kubectl: Path, words: tuple[str, ...]) -> None:
    """No node is asked about an environment that does not exist."""
    result = run(*words)
    assert result.exit_code == 3, result.output
    assert "Did you mean `toy`?" in result.stderr


def test_what_real_clusters_ask_for(kubectl: Path) -> None:
    nodes = json.loads(json.dumps(NODES))
    for item, product in zip(nodes["items"], ("NVIDIA-A100-SXM4-80GB", "NVIDIA-H100-80GB-HBM3")):
        item["metadata"]["labels"]["nvidia.com/gpu.product"] = product
    (kubectl / "nodes.json").write_text(json.dumps(nodes))
    words = ["--gpus", "a100:8", "--mem", "64G", "--env", "A=$(B) $C", "--requeue", "1"]
    for setting in ("queue=q", "topology=rack", "priority=high", "keep=1d", "disk=20G", "cpus=8"):
        words += ["--set", setting]
    result = run(*LAUNCH, *words, "--", "-m", "lab.train")
    assert result.exit_code == 0, result.output
    *_, job = yaml.safe_load_all((kubectl / "created.yaml").read_text())
    spec, template = job["spec"], job["spec"]["template"]
    assert spec["ttlSecondsAfterFinished"] == 86400
    [rule] = spec["podFailurePolicy"]["rules"]
    assert (rule["action"], rule["onPodConditions"][0]["type"]) == ("Ignore", "DisruptionTarget")
    annotations = template["metadata"]["annotations"]
    assert annotations == {"kueue.x-k8s.io/podset-required-topology": "rack"}
    pod = template["spec"]
    assert pod["priorityClassName"] == "high"
    [container] = pod["containers"]
    assert container["image"] == IMAGE
    assert container["env"][0] == {"name": "A", "value": "$$(B) $$C"}
    assert container["resources"] == {
        "limits": {"nvidia.com/gpu": 8, "memory": "65536Mi", "ephemeral-storage": "20480Mi"},
        "requests": {"cpu": 8, "memory": "65536Mi", "ephemeral-storage": "20480Mi"},
    }
    affinity = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    [term] = affinity["nodeSelectorTerms"]
    assert term["matchExpressions"][-1]["values"] == ["NVIDIA-A100-SXM4-80GB"]


def test_an_image_without_its_registry_stays_a_tag(kubectl: Path) -> None:
    words = ["launch", "toy", "--on", "k8s:pool=h100", "--image", "127.0.0.1:9/toy:1"]
    result = run(*words, "--dry-run", "--", "hostname")
    assert result.exit_code == 0, result.output
    assert "127.0.0.1:9/toy:1 stays a tag" in result.stderr
    *_, job = yaml.safe_load_all(result.stdout)
    assert job["spec"]["template"]["spec"]["containers"][0]["image"] == "127.0.0.1:9/toy:1"


def test_what_the_server_refuses_is_said(kubectl: Path) -> None:
    (kubectl / "refusal").write_text("Error from server (Forbidden): exceeded quota: gpus")
    result = run(*LAUNCH, "--", "hostname")
    assert result.exit_code == 3
    assert "Kubernetes refused: Error from server (Forbidden): exceeded quota" in result.stderr
    assert not (kubectl / "created.yaml").exists()


def test_jobs_are_listed_and_canceled(kubectl: Path) -> None:
    listed = run("jobs", "list", "--on", "k8s:pool=h100", "--namespace", "lab")
    assert listed.exit_code == 0, listed.output
    assert listed.stdout.splitlines()[1].split()[:4] == [
        "k8s:train-1a2b3c",
        "train-1a2b3c",
        "Suspended",
        "2",
    ]
    assert "waits for its queue" in listed.stdout
    canceled = run("jobs", "cancel", "k8s:train-1a2b3c")
    assert canceled.stdout == "canceled: k8s:train-1a2b3c\n", canceled.output
    assert "app.kubernetes.io/name=train-1a2b3c" in (kubectl / "calls").read_text()


@pytest.mark.parametrize(
    ("answer", "kinds"), [("yes", "jobs,jobsets"), ("no", "jobs")], ids=["allowed", "forbidden"]
)
def test_jobsets_are_listed_too(kubectl: Path, answer: str, kinds: str) -> None:
    (kubectl / "api-versions").write_text("batch/v1\njobset.x-k8s.io/v1alpha2\n")
    (kubectl / "can-i").write_text(answer)
    listed = run("jobs", "list", "--on", "k8s:pool=h100")
    assert listed.exit_code == 0, listed.output
    assert f"get {kinds} -l" in (kubectl / "calls").read_text()


def test_log_of_a_job_of_which_a_pod_waits(kubectl: Path) -> None:
    """kubectl has no log of such a pod, and would say only that."""
    message = "0/4 nodes are available: 4 Insufficient nvidia.com/gpu."
    condition = {"type": "PodScheduled", "status": "False", "message": message}
    index = "batch.kubernetes.io/job-completion-index"
    pods = [
        {
            "metadata": {"name": "train-1a2b3c-1-xyz", "annotations": {index: "1"}},
            "status": {"phase": "Pending", "conditions": [condition]},
        },
        {
            "metadata": {"name": "train-1a2b3c-0-abc", "annotations": {index: "0"}},
            "status": {"phase": "Running"},
        },
    ]
    (kubectl / "pods.json").write_text(json.dumps({"items": pods}))
    log = run("jobs", "log", "k8s:train-1a2b3c")
    assert log.exit_code == 0, log.output
    lines = log.stdout.splitlines()
    assert lines[:2] == ["==> train-1a2b3c-0-abc", "step 100"]
    assert lines[-2:] == ["==> train-1a2b3c-1-xyz", f"no log yet: {message}"]


def test_a_log_is_followed_until_the_job_ends(kubectl: Path) -> None:
    pod = {"metadata": {"name": "train-1a2b3c-0-abc", "uid": "u"}, "status": {"phase": "Running"}}
    (kubectl / "pods.json").write_text(json.dumps({"items": [pod]}))
    jobs = json.loads(json.dumps(JOBS))
    jobs["items"][0]["status"] = {"conditions": [{"type": "Failed", "status": "True"}]}
    (kubectl / "jobs.json").write_text(json.dumps(jobs))
    log = run("jobs", "log", "-f", "k8s:train-1a2b3c")
    assert (log.exit_code, log.stdout) == (1, "[pod/train-1a2b3c-0-abc] step 100\n"), log.output
    assert "job k8s:train-1a2b3c: Failed" in log.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--on", "k8s:pool=h100"), "Kubernetes runs images only"),
        (("--on", "k8s:pool=h100", "--image", IMAGE, "--nodes", "3"), "--nodes 3, but --on"),
        (
            ("--on", "k8s:pool=h100", "--image", IMAGE, "--set", "rdma=hca"),
            "'hca' is not a resource",
        ),
        (
            ("--on", "k8s:pool=h100", "--image", IMAGE, "--set", "job_name=A"),
            "cannot be named 'A'",
        ),
        (("--on", "k8s:pool=h100", "--image", " "), "' ' is not an image reference"),
        (
            ("--on", "k8s:pool=h100", "--image", IMAGE, "--set", "sbatch=--x"),
            "only Slurm has this",
        ),
        (
            ("--on", "k8s:pool=h100", "--image", IMAGE, "--set", "topology=rack"),
            "give its queue with --set queue",
        ),
        (("--on", "k8s:pool=h100", "--image", IMAGE, "--mem", "4G"), "shared memory counts"),
        (("--on", "k8s:pool=h100", "--image", IMAGE, "--gpus", "a100:1"), "has such GPUs"),
        (("--on", "k8s:pool=h100", "--image", IMAGE, "--qos", "x"), "--qos: only Slurm"),
        (("--on", "ssh:h1", "--mem", "4G"), "need a scheduler"),
        (("--on", "ssh:h1", "--image", IMAGE), "On plain hosts launch runs prefixes only"),
        pytest.param(
            ("--on", "ssh:h1", "--time", "4h"),
            "ssh does not support a time limit",
            marks=pytest.mark.needs("ssh"),
        ),
        (
            ("--on", "local", "--prefix", "/p", "--image", "i"),
            "--prefix and --image cannot be combined",
        ),
    ],
)
def test_bad_input_is_named_before_anything_is_created(
    kubectl: Path, words: tuple[str, ...], message: str
) -> None:
    result = run("launch", "toy", *words, "--", "hostname")
    assert result.exit_code == 3, result.output
    assert message in " ".join(result.stderr.split())
    calls = (kubectl / "calls").read_text() if (kubectl / "calls").exists() else ""
    assert "create" not in calls


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--time", "soon"), "'soon' is not a time limit"),
        (("--set", "sbatch=--array=1-9"), "--array of sbatch is set by provision"),
        (("--set", "jobset=true"), "--set jobset: only Kubernetes has this"),
        (("--image", "x.sqsh"), "x.sqsh is not a file on this machine"),
    ],
)
def test_what_no_slurm_can_run_is_named(
    kubectl: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
) -> None:
    monkeypatch.setenv("PATH", str(kubectl))
    result = run("launch", "toy", "--on", "slurm:gpu", *words, "--dry-run", "--", "hostname")
    assert result.exit_code == 3, result.output
    assert message in " ".join(result.stderr.split())


def test_a_slurm_that_does_not_answer_is_said_to_be_unreachable(
    kubectl: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_program(kubectl / "squeue", "#!/bin/sh\nexec sleep 30\n")
    monkeypatch.setattr("provision.adapters.slurm.command.COMMAND_TIMEOUT_S", 0.1)
    result = run("jobs", "list")
    assert result.exit_code == 8, result.output
    assert "Slurm's controller did not answer `squeue`" in result.stderr


def test_a_slurm_without_its_settings_is_said_to_be_unreachable(kubectl: Path) -> None:
    """squeue's words (22.05) after a minute without slurm.conf."""
    words = "squeue: fatal: Unable to process configuration file"
    write_program(kubectl / "squeue", f"#!/bin/sh\necho '{words}' >&2\nexit 1\n")
    result = run("jobs", "list")
    assert result.exit_code == 8, result.output
    assert "Unable to process configuration file" in " ".join(result.stderr.split())


def test_a_script_that_does_not_exist_is_named(kubectl: Path) -> None:
    result = run("launch", "toy", "--on", "local", "--", "train.py")
    assert result.exit_code == 3
    assert "There is no" in result.stderr and "train.py" in result.stderr


def test_an_api_server_that_is_down_is_said_once(kubectl: Path) -> None:
    log = 'E1123 10:56:58.710425 9812 memcache.go:265] "Unhandled Error" err="connection refused"'
    last = "The connection to the server localhost:8080 was refused"
    script = f"#!/bin/sh\nprintf '%s\\n' '{log}' '{log}' '{last}' >&2\nexit 1\n"
    (kubectl / "kubectl").write_text(script)
    result = run("jobs", "log", "k8s:train-1")
    assert result.exit_code == 8, result.output
    assert last in " ".join(result.stderr.split())
    assert "memcache" not in result.stderr


def test_jobs_without_an_engine(kubectl: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "neither the number of a Slurm job nor k8s:NAME" in run("jobs", "log", "train-1").stderr
    monkeypatch.setenv("PATH", "/nonexistent")
    assert run("jobs", "cancel", "k8s:train-1").exit_code == 9
    assert run("jobs", "cancel", "12").exit_code == 9
