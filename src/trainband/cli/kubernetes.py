"""`trainband kubernetes`: jobs for a Kubernetes cluster."""

from __future__ import annotations

from typing import Any

import click

from trainband.cli.options import pop_options
from trainband.cluster.credentials import new_secret
from trainband.cluster.resolvers.credentials import INSECURE, MEANING
from trainband.launch.kubernetes.manifest import KubernetesJob, job_name, objects
from trainband.launch.kubernetes.pod_template import SECRET, Resources
from trainband.launch.kubernetes.yaml_text import to_yaml

_SETTINGS = {"help_option_names": ["-h", "--help"]}

# Not manifest's docstring: click's \b, which keeps line breaks, does not work in a raw docstring.
_HELP = """Write the manifest of a job to stdout, for kubectl.

Every task runs SCRIPT with ARGS in the image, which must contain Python, trainband and the program.

\b
    trainband kubernetes manifest --image registry/team/train:1 --workers 4 --gpus 1 train.py --steps 1000 > job.yaml
    kubectl apply -f job.yaml
    kubectl logs -f -l trainband-run=train --prefix --max-log-requests 20
    kubectl delete -f job.yaml

The manifest holds a new secret by which the tasks recognise one another: keep it where only you can read it, or
make the Secret yourself and name it with --secret.
"""


@click.group(context_settings=_SETTINGS)
def kubernetes() -> None:
    """Write the manifest of a job for Kubernetes (docs/run/kubernetes.md)."""


@kubernetes.command(context_settings={**_SETTINGS, "allow_interspersed_args": False}, help=_HELP)
@click.option("--image", required=True, help="The container image.")
@click.option("--name", help="Name of the job and its objects.  [default: the script's]")
@click.option(
    "--kind",
    type=click.Choice(["jobset", "job"]),
    default="jobset",
    show_default=True,
    help="One JobSet, whose controller must be installed; or plain Jobs, which every cluster supports.",
)
@click.option("--namespace", "-n", help="Namespace of the objects.  [default: kubectl's]")
@click.option("--ps", type=click.IntRange(min=0), default=1, show_default=True, help="Number of parameter servers.")
@click.option("--workers", type=click.IntRange(min=0), default=2, show_default=True, help="Number of workers.")
@click.option("--chief", is_flag=True, help="Add a chief.")
@click.option("--evaluator", is_flag=True, help="Add a task that evaluates every checkpoint.")
@click.option("--restarts", type=click.IntRange(min=0), default=3, show_default=True, help="Restarts of a failed task.")
@click.option("--cpu", default="", metavar="CORES", help="CPU request of each worker, such as 4 or 500m.")
@click.option("--memory", default="", metavar="SIZE", help="Memory request and limit of each worker, such as 16Gi.")
@click.option("--gpus", type=click.IntRange(min=0), default=0, help="NVIDIA GPUs of each worker.")
@click.option("--ps-cpu", default="", metavar="CORES", help="CPU request of each ps.")
@click.option("--ps-memory", default="", metavar="SIZE", help="Memory request and limit of each ps.")
@click.option(
    "--checkpoints",
    default="",
    metavar="CLAIM|SIZE",
    help="Mount a volume claim at /checkpoints: an existing one by name, or a new one of this size, such as 20Gi.",
)
@click.option("--storage-class", default="", help="Class of a new claim; it must allow writers on several nodes.")
@click.option(
    "--secret", default="", metavar="NAME", help="An existing Secret, whose key `secret` is the job's secret."
)
@click.option(
    "--tls-secret", default="", metavar="NAME", help="An existing Secret with the files of `trainband certs`."
)
@click.option("--insecure", is_flag=True, help="Let anyone who reaches a ps read the model and take over the job.")
@click.option("--service-account", default="", help="Service account of the pods.")
@click.option("--pull-secret", default="", help="The name of a Secret for the image's registry.")
@click.option(
    "--grace",
    "grace_s",
    type=click.IntRange(min=1),
    default=120,
    show_default=True,
    help="Seconds a task has to end; allow for the current step and a checkpoint.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(1, 65535),
    metavar="PORT",
    help="Serve each task's Prometheus metrics on this port, and annotate the pods for scraping.",
)
@click.option("--fs-group", type=click.IntRange(min=0), default=1000, show_default=True, help="Group of mounted files.")
@click.option("-m", "as_module", is_flag=True, help="SCRIPT is the name of a module, as for python -m.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...")
def manifest(
    name: str | None,
    ps: int,
    workers: int,
    chief: bool,
    evaluator: bool,
    insecure: bool,
    script: str,
    arguments: tuple[str, ...],
    **given: Any,
) -> None:
    """The command; `_HELP` is its documentation."""
    if not workers and not chief:
        raise click.UsageError("--workers must be at least 1, or no task trains; with --chief, it may be 0.")
    if insecure and (given["secret"] or given["tls_secret"]):
        raise click.UsageError("--insecure contradicts --secret and --tls-secret.")
    if insecure:
        click.echo(f"trainband: WARNING: {MEANING}", err=True)
    ps_resources = Resources(cpu=given.pop("ps_cpu"), memory=given.pop("ps_memory"))
    job = KubernetesJob(
        name=name or job_name(script),
        command=[*(["-m"] if given.pop("as_module") else []), script, *arguments[arguments[:1] == ("--",) :]],
        sizes={"ps": ps, "chief": int(chief), "worker": workers, "evaluator": int(evaluator)},
        ps=ps_resources,
        workers=pop_options(Resources, given),
        files={} if given["secret"] or insecure else {SECRET: new_secret().encode()},
        environment={INSECURE: "1"} if insecure else {},
        metrics_port=given.pop("metrics_port") or 0,
        **given,
    )
    click.echo(to_yaml(objects(job)), nl=False)
