"""The kinds of objects that are used, and where the API server keeps them. Holds no request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

#: An object as the API server gives it.
Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """`api_version` and `name` as in a manifest; `plural` as in a path."""

    api_version: str
    plural: str
    name: str

    @property
    def group(self) -> str:
        """The API group; "" is the core group."""
        return self.api_version.rpartition("/")[0]

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The path of one object or of a collection; namespace "": of all namespaces, or a kind that has none."""
        root = f"/apis/{self.api_version}" if self.group else f"/api/{self.api_version}"
        place = ["namespaces", quote(namespace, safe="")] if namespace else []
        rest = [quote(part, safe="") for part in (name, subresource) if part]
        return "/".join([root, *place, self.plural, *rest])


CONFIG_MAP = Kind("v1", "configmaps", "ConfigMap")
EVENT = Kind("v1", "events", "Event")
NAMESPACE = Kind("v1", "namespaces", "Namespace")
POD = Kind("v1", "pods", "Pod")
SECRET = Kind("v1", "secrets", "Secret")
SERVICE = Kind("v1", "services", "Service")
SERVICE_ACCOUNT = Kind("v1", "serviceaccounts", "ServiceAccount")
CONTROLLER_REVISION = Kind("apps/v1", "controllerrevisions", "ControllerRevision")
LEASE = Kind("coordination.k8s.io/v1", "leases", "Lease")
ROLE = Kind("rbac.authorization.k8s.io/v1", "roles", "Role")
ROLE_BINDING = Kind("rbac.authorization.k8s.io/v1", "rolebindings", "RoleBinding")
ACCESS_REVIEW = Kind("authorization.k8s.io/v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview")
SINK_JOB = Kind("sinkjob.io/v1alpha1", "sinkjobs", "SinkJob")
