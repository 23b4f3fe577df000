"""What runs and with how much: `deps`, `driver`, `executor`, `dynamicAllocation`.

Part of the models of the manifest; `sinkjob run` on one machine uses only `deps` and the driver's memory.
"""

from typing import Annotated, Literal

from pydantic import Field

from sinkruntime.spec.base import FreeMap, Items, Model, Text
from sinkruntime.spec.quantities import Memory
from sinkruntime.spec.source import ObjectName

ImagePullPolicy = Literal["Always", "IfNotPresent", "Never"]
Cores = Annotated[int, Field(ge=1, le=1024)]


class Deps(Model):
    """The users' own code and jars."""

    py_files: Items[Text] = Field(
        default=(),
        description="Python files, zip files or directories put on the path of driver and executors.",
    )
    jars: Items[Text] = Field(default=(), description="Jar files put on the class path of driver and executors.")
    config_maps: Items[ObjectName] = Field(
        default=(),
        description="ConfigMaps whose keys are files of Python code, put on the path. On a cluster only.",
    )


class Driver(Model):
    """The Spark driver's pod."""

    cores: Cores = Field(default=1, description="Cores of the pod.")
    memory: Memory = Field(default=Memory.parse("1g"), description="Heap of the JVM.")
    memory_overhead: Memory = Field(default=Memory.parse("512m"), description="Memory beside the heap, with Python's.")
    pod_template: FreeMap = Field(
        default={},
        description="A pod (`metadata`, `spec`) that the operator merges its own into.",
    )


class Executor(Model):
    """The pods of the Spark executors."""

    instances: int = Field(
        default=2,
        ge=0,
        le=10_000,
        description="Number of executors; the first number with `dynamicAllocation`.",
    )
    cores: Cores = Field(default=1, description="Cores of each.")
    memory: Memory = Field(default=Memory.parse("1g"), description="Heap of the JVM of each.")
    memory_overhead: Memory = Field(
        default=Memory.parse("768m"),
        description="Memory of each beside the heap, with the Python workers'.",
    )
    pod_template: FreeMap = Field(default={}, description="A pod (`metadata`, `spec`) that Spark merges its own into.")


class DynamicAllocation(Model):
    """Spark's own scaling of the number of executors."""

    enabled: bool = Field(default=False, description="Whether Spark adds and removes executors.")
    min_executors: int = Field(default=0, ge=0, le=10_000, description="Never fewer than these.")
    max_executors: int = Field(default=4, ge=1, le=10_000, description="Never more than these.")
