"""Checks an installed release from inside the cluster; changes nothing.

Run by the pod of `helm test` with the operator's service account: `check.py OPERATOR_URL OPERATOR_NAMESPACE
WATCHED_NAMESPACES`. Prints one line for each check, exits 1 after the first that fails. Standard library only.
"""

import json
import ssl
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
API_SERVER = "https://kubernetes.default.svc"
REQUEST_TIMEOUT_SECONDS = 10
# A release that was just installed gets this long to become healthy.
HEALTHY_WITHIN_SECONDS = 60
POLL_SECONDS = 2


def ask(path: str) -> Any:
    """What the API server answers to the operator's service account."""
    headers = {"Authorization": f"Bearer {(ACCOUNT / 'token').read_text()}"}
    context = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    request = urllib.request.Request(API_SERVER + path, headers=headers)
    with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_SECONDS, context=context) as answer:
        return json.load(answer)


def healthy(url: str) -> str:
    """The operator's own word on its health, once it is good."""
    end = time.monotonic() + HEALTHY_WITHIN_SECONDS
    while True:
        try:
            with urllib.request.urlopen(url, timeout=REQUEST_TIMEOUT_SECONDS) as answer:
                return f"{url} answers {answer.status}"
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(POLL_SECONDS)


def main(operator: str, namespace: str, watched: str) -> None:
    """All checks, in the order in which they depend on each other."""
    for watched_namespace in watched.split(",") if watched else [""]:
        place = f"/namespaces/{watched_namespace}" if watched_namespace else ""
        jobs = ask(f"/apis/sinkjob.io/v1alpha1{place}/sinkjobs?limit=1")
        version = jobs["metadata"]["resourceVersion"]
        print(f"SinkJobs of {watched_namespace or 'the cluster'} can be listed, at version {version}")
    print(healthy(f"{operator}/healthz"))
    print(healthy(f"{operator}/readyz"))
    leases = ask(f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases")["items"]
    held = [lease["metadata"]["name"] for lease in leases if lease["spec"].get("holderIdentity")]
    if not held:
        raise OSError(f"no Lease in namespace {namespace} is held: no replica works")
    print(f"{len(held)} Leases are held")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except (OSError, KeyError) as error:
        sys.exit(f"failed: {error}")
