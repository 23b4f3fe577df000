"""What a pod's process is told by its environment: who it is, where things are mounted, how long it may take to stop.

Read once by the entry points. The operator sets the variables (see `Surroundings`); none of them is a secret.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sinkruntime.errors import ConfigurationError
from sinkruntime.spark.kubernetes import DriverPod
from sinkruntime.spec.options_from import Places

PREFIX = "SINKJOB_"
JOB_FILE = "job.json"
#: Where a manifest's relative paths begin: an image with users' code has it there.
APPLICATION = Path("/opt/app")


class Surroundings(BaseModel):
    """`SINKJOB_NAMESPACE`, `SINKJOB_JOB` and so on. Those without a default must be there."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    namespace: str = Field(min_length=1, description="Namespace of the SinkJob and of this pod.")
    job: str = Field(min_length=1, description="Name of the SinkJob.")
    epoch: int = Field(default=0, ge=0, description="The driver run that this pod is; a committer has none.")
    pod_name: str = Field(min_length=1, description="From the downward API.")
    pod_uid: str = Field(default="", description="From the downward API.")
    pod_ip: str = Field(default="127.0.0.1", description="From the downward API: executors connect to it.")
    image: str = Field(default="", description="Image of this pod, which the executors get too.")
    master: str = Field(default="", description="Spark's master in place of this cluster. For tests: `local[2]`.")
    mounts: Path = Field(default=Path("/etc/sinkjob"), description="Folder of `job`, `secrets` and `configmaps`.")
    termination_log: Path = Field(default=Path("/dev/termination-log"), description="Where the last word goes.")
    #: Kubernetes' own default of `terminationGracePeriodSeconds`.
    grace_seconds: float = Field(default=30.0, gt=0, description="The pod's `terminationGracePeriodSeconds`.")
    executor_seconds: float = Field(
        default=300.0, gt=0, description="A job without any executor for so long ends, and says why there is none."
    )

    @classmethod
    def read(cls, environ: Mapping[str, str] | None = None) -> Surroundings:
        """From this process's environment; raises `ConfigurationError` that names the variable."""
        given = os.environ if environ is None else environ
        values = {
            name.removeprefix(PREFIX).lower(): value
            for name, value in given.items()
            if name.startswith(PREFIX) and value != ""
        }
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            first = error.errors()[0]
            name = PREFIX + str(first["loc"][0]).upper()
            message = f"the environment variable {name}: {first['msg']}"
            raise ConfigurationError(
                "NotInAPod", message, advice="the operator starts this; see `sinkjob run`"
            ) from None

    @property
    def name(self) -> str:
        """The job for people: namespace/name."""
        return f"{self.namespace}/{self.job}"

    @property
    def places(self) -> Places:
        """Where Secrets and ConfigMaps are mounted."""
        return Places(self.mounts / "secrets", self.mounts / "configmaps")

    def driver_pod(self) -> DriverPod:
        """As Spark's settings need it."""
        host = os.environ.get("KUBERNETES_SERVICE_HOST", "kubernetes.default.svc")
        port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        return DriverPod(
            self.namespace,
            self.job,
            self.epoch,
            self.pod_name,
            self.pod_ip,
            self.image,
            self.mounts,
            server,
        )
