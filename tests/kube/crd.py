"""Puts our CRD on an API server. Used by the fixtures of this folder, and by whatever runs without pytest."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path

import yaml

from sinkruntime.kube import SINK_JOB, Api, ApiSettings, Kind, NotFound, Object

CRD = Kind("apiextensions.k8s.io/v1", "customresourcedefinitions", "CustomResourceDefinition")
CRD_FILE = Path(__file__).resolve().parents[2] / "crds" / "sinkjobs.sinkjob.io.yaml"
ESTABLISH_SECONDS = 30.0


async def serve_crd(kubeconfig: Path) -> None:
    """Put it there, and wait until it is served; raises TimeoutError."""
    crd: Object = yaml.safe_load(CRD_FILE.read_text())
    async with await Api.connect(ApiSettings(kubeconfig=str(kubeconfig))) as api:
        present = await api.get(CRD, "", crd["metadata"]["name"])
        if present is None:
            await api.create(CRD, "", crd)
        else:
            crd["metadata"]["resourceVersion"] = present["metadata"]["resourceVersion"]
            await api.replace(CRD, "", crd)
        deadline = time.monotonic() + ESTABLISH_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(NotFound):
                await api.list(SINK_JOB)
                return
            await asyncio.sleep(0.1)
    raise TimeoutError(f"the CRD is not served after {ESTABLISH_SECONDS:.0f} s")
