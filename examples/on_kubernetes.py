"""A run on Kubernetes: prints a DaskJob, which the Dask operator turns into a scheduler, workers and the driver, and
ends with the run.

    # ca.pem, cert.pem and key.pem: see docs/cluster.md
    kubectl create secret generic millrace-tls --from-file=tls/
    python examples/on_kubernetes.py --image registry/millrace:0.2.0 --volume millrace-data \
        --workers 4 --cores 8 --memory 32Gi --dataset /data/store --ranks 4 --out /data/runs/one \
        | kubectl apply -f -
    kubectl logs -f millrace-runner

With `--tables /data/tables --work /data/graph --parts 4` in place of `--dataset` it does the whole chain of
examples/chain.py: tables become a store, its nodes are renumbered part by part, a run trains on that, and its model is
evaluated and predicts, all by the same pods.

Before that: `helm install --repo https://helm.dask.org --generate-name dask-kubernetes-operator`; an image that has
Millrace; a volume claim that many pods may write (ReadWriteMany), mounted as /data, for the dataset and the run's
folder. All other arguments go to `millrace run` in the driver's pod.

What to expect: the log shows what `millrace` prints once all workers are there; then the workers are gone, and
`kubectl get daskjobs` says Successful or Failed. A killed pod is a lost rank (see docs/cluster.md). To go on after a
failure: `kubectl delete daskjob millrace`, then the same command, with `--resume` unless it has `--tables`. Traffic
between ranks is not encrypted: keep the namespace's network to itself.

Rendered only: `make test` has no Kubernetes. It checks the manifest against the schemas that dask-kubernetes brings,
that Dask and Millrace take the arguments, and that the driver's commands do the chain where processes stand in for
pods. Needs the extra `launch`.
"""

import argparse
import shlex
import sys

import chain
import yaml
from dask_kubernetes.operator import make_cluster_spec

TLS = {"ca": "/tls/ca.pem", "cert": "/tls/cert.pem", "key": "/tls/key.pem"}
DASK_TLS = ["--tls-ca-file", TLS["ca"], "--tls-cert", TLS["cert"], "--tls-key", TLS["key"]]
WAIT = """
from distributed import Client, Security
files = dict(tls_ca_file="{ca}", tls_client_cert="{cert}", tls_client_key="{key}", require_encryption=True)
Client("{address}", security=Security(**files), timeout=600).wait_for_workers({workers}, timeout=600)
"""


def address_of(name: str) -> str:
    """The scheduler's."""
    return f"tls://{name}-scheduler:8786"


def manifest(name: str, image: str, volume: str, workers: int, cores: int, memory: str, line: str) -> dict:
    """The DaskJob: a cluster of `workers` pods, and a pod that waits for all of them and runs a shell script.

    Args:
        name: of the job, and the beginning of the names of its pods.
        image: has Millrace.
        volume: a claim that all pods mount as /data.
        workers: pods that hold a rank or run tasks.
        cores: of each pod.
        memory: of each pod, such as 32Gi.
        line: the script.
    """
    address = address_of(name)
    size = {"cpu": str(cores), "memory": memory}
    worker = ["dask", "worker", address, "--nthreads", "1", "--memory-limit", "0", *DASK_TLS]
    cluster = make_cluster_spec(name, image=image, n_workers=workers, worker_command=worker, env=[])
    cluster["spec"]["worker"]["spec"]["containers"][0]["resources"] = {"requests": size, "limits": size}
    cluster["spec"]["scheduler"]["spec"]["containers"][0]["resources"] = {}
    cluster["spec"]["scheduler"]["spec"]["containers"][0]["args"] = [
        "dask",
        "scheduler",
        "--host",
        "0.0.0.0",
        *DASK_TLS,
    ]
    wait = ["python", "-c", WAIT.format(address=address, workers=workers, **TLS)]
    driver = {
        "name": "driver",
        "image": image,
        "command": ["sh", "-c", f"{shlex.join(wait)} || exit\n{line}"],
        "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "resources": {"requests": size, "limits": size},
        # All but the shell, which would keep it to itself: a run writes a checkpoint before it ends.
        "lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", "kill -TERM -1"]}}},
    }
    pods = [
        cluster["spec"]["worker"]["spec"],
        cluster["spec"]["scheduler"]["spec"],
        {"restartPolicy": "Never", "containers": [driver]},
    ]
    for pod in pods:
        pod["volumes"] = [
            {"name": "data", "persistentVolumeClaim": {"claimName": volume}},
            {"name": "tls", "secret": {"secretName": "millrace-tls"}},
        ]
        for container in pod["containers"]:
            container["volumeMounts"] = [
                {"name": "data", "mountPath": "/data"},
                {"name": "tls", "mountPath": "/tls", "readOnly": True},
            ]
    return {
        "apiVersion": "kubernetes.dask.org/v1",
        "kind": "DaskJob",
        "metadata": {"name": name},
        "spec": {"cluster": {"spec": cluster["spec"]}, "job": {"spec": pods[2]}},
    }


def main() -> None:
    """Print the manifest."""
    parser = argparse.ArgumentParser(
        description="Millrace on Kubernetes; other arguments go to `millrace run`.", allow_abbrev=False
    )
    parser.add_argument("--name", default="millrace", help="of the job (millrace)")
    parser.add_argument("--image", required=True, help="has Millrace installed")
    parser.add_argument("--volume", required=True, help="a ReadWriteMany volume claim, mounted as /data")
    parser.add_argument("--workers", type=int, default=2, help="pods that hold a rank or run tasks (2)")
    parser.add_argument("--cores", type=int, default=4, help="of each pod (4)")
    parser.add_argument("--memory", default="16Gi", help="of each pod (16Gi)")
    chain.add_arguments(parser)
    here, run = parser.parse_known_args()
    # Kubernetes puts the address of the pod in the place of its name.
    settings = {"scheduler": address_of(here.name), "host": "$(POD_IP)", **{f"tls_{k}": v for k, v in TLS.items()}}
    line = chain.script(here, settings, ["--set", f"threads={here.cores}", *run])
    size = (here.workers, here.cores, here.memory)
    yaml.safe_dump(manifest(here.name, here.image, here.volume, *size, line), sys.stdout, sort_keys=False)


if __name__ == "__main__":
    main()
