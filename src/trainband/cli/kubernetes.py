"""`trainband kubernetes`: jobs for a cluster of Kubernetes."""

from __future__ import annotations

import click

from trainband.cluster.credentials import new_secret
from trainband.cluster.resolvers.credentials import INSECURE, MEANING
from trainband.launch.kubernetes.manifest import Kind, KubernetesJob, job_name, objects
from trainband.launch.kubernetes.pod_template import SECRET, Resources
from trainband.launch.kubernetes.yaml_text import to_yaml

_SETTINGS = {"help_option_names": ["-h", "--help"]}

# Not manifest's docstring, because click's mark \b for lines to leave as they are cannot stand in a raw one.
_HELP = """Write the manifest of a job to stdout, for kubectl.

SCRIPT and its ARGS are run with Python by every task, in the image, which has trainband and the program in it.

\b
    trainband kubernetes manifest --image registry/team/train:1 --workers 4 --gpus 1 train.py --steps 1000 > job.yaml
    kubectl apply -f job.yaml
    kubectl logs -f -l trainband-run=train --prefix --max-log-requests 20
    kubectl delete -f job.yaml

The manifest holds a new secret, with which the tasks know one another: keep it where only you can read it, or
make the Secret yourself and name it with --secret.
"""


@click.group(context_settings=_SETTINGS)
def kubernetes() -> None:
    """Write the manifest of a job for Kubernetes (docs/run/kubernetes.md)."""


@kubernetes.command(context_settings={**_SETTINGS, "allow_interspersed_args": False}, help=_HELP)
@click.option("--image", required=True, help="The container image.")
@click.option("--name", help="Of the job and its objects.  [default: the script's]")
@click.option(
    "--kind",
    type=click.Choice(["jobset", "job"]),
    default="jobset",
    show_default=True,
    help="One JobSet, whose controller must be installed; or plain Jobs, which every cluster has.",
)
@click.option("--namespace", "-n", help="Where the objects are made.  [default: kubectl's]")
@click.option("--ps", type=click.IntRange(min=0), default=1, show_default=True, help="How many parameter servers.")
@click.option("--workers", type=click.IntRange(min=0), default=2, show_default=True, help="How many workers.")
@click.option("--chief", is_flag=True, help="A chief beside the workers.")
@click.option("--evaluator", is_flag=True, help="A task beside them that evaluates every checkpoint.")
@click.option("--restarts", type=click.IntRange(min=0), default=3, show_default=True, help="Of each failed task.")
@click.option("--cpu", default="", metavar="CORES", help="What each worker asks for, such as 4 or 500m.")
@click.option("--memory", default="", metavar="SIZE", help="The same, such as 16Gi; also the most that it may use.")
@click.option("--gpus", type=click.IntRange(min=0), default=0, help="NVIDIA GPUs of each worker.")
@click.option("--ps-cpu", default="", metavar="CORES", help="What each ps asks for.")
@click.option("--ps-memory", default="", metavar="SIZE", help="The same; also the most that it may use.")
@click.option(
    "--checkpoints",
    default="",
    metavar="CLAIM|SIZE",
    help="Mount a volume claim at /checkpoints: an existing one by its name, or a new one of this size, such as 20Gi.",
)
@click.option("--storage-class", default="", help="Of a new claim; it must take writers on several nodes.")
@click.option(
    "--secret", default="", metavar="NAME", help="An existing Secret, whose key `secret` is the job's secret."
)
@click.option("--tls-secret", default="", metavar="NAME", help="An existing Secret of what `trainband certs` has made.")
@click.option("--insecure", is_flag=True, help="Let anybody who reaches a ps read the model and take over the job.")
@click.option("--service-account", default="", help="Of the pods.")
@click.option("--pull-secret", default="", help="The name of a Secret for the image's registry.")
@click.option(
    "--grace",
    "grace_s",
    type=click.IntRange(min=1),
    default=120,
    show_default=True,
    help="Seconds that a task has to end: the current step and a checkpoint must fit.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(1, 65535),
    metavar="PORT",
    help="Serve each task's metrics for Prometheus there, with the annotations that have it scrape the pod.",
)
@click.option("--fs-group", type=click.IntRange(min=0), default=1000, show_default=True, help="Reads mounted files.")
@click.option("-m", "as_module", is_flag=True, help="SCRIPT is the name of a module, as for python -m.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...")
def manifest(
    image: str,
    name: str | None,
    kind: Kind,
    namespace: str | None,
    ps: int,
    workers: int,
    chief: bool,
    evaluator: bool,
    restarts: int,
    cpu: str,
    memory: str,
    gpus: int,
    ps_cpu: str,
    ps_memory: str,
    checkpoints: str,
    storage_class: str,
    secret: str,
    tls_secret: str,
    insecure: bool,
    service_account: str,
    pull_secret: str,
    grace_s: int,
    metrics_port: int | None,
    fs_group: int,
    as_module: bool,
    script: str,
    arguments: tuple[str, ...],
) -> None:
    """The command; `_HELP` is its documentation."""
    if not workers and not chief:
        raise click.UsageError("--workers must be at least 1, or no task would train; with --chief, it may be 0.")
    if insecure and (secret or tls_secret):
        raise click.UsageError("--insecure contradicts --secret and --tls-secret.")
    if insecure:
        click.echo(f"trainband: WARNING: {MEANING}", err=True)
    job = KubernetesJob(
        name=name or job_name(script),
        image=image,
        command=[*(["-m"] if as_module else []), script, *arguments[arguments[:1] == ("--",) :]],
        sizes={"ps": ps, "chief": int(chief), "worker": workers, "evaluator": int(evaluator)},
        kind=kind,
        namespace=namespace,
        restarts=restarts,
        ps=Resources(cpu=ps_cpu, memory=ps_memory),
        workers=Resources(cpu=cpu, memory=memory, gpus=gpus),
        checkpoints=checkpoints,
        storage_class=storage_class,
        secret=secret,
        tls_secret=tls_secret,
        files={} if secret or insecure else {SECRET: new_secret().encode()},
        environment={INSECURE: "1"} if insecure else {},
        metrics_port=metrics_port or 0,
        grace_s=grace_s,
        fs_group=fs_group,
        service_account=service_account,
        pull_secret=pull_secret,
    )
    click.echo(to_yaml(objects(job)), nl=False)
