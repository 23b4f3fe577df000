"""Builders of the objects that a job consists of: plain dictionaries from what was gathered. Pure: nothing is asked.

`apply` calls `driver`, `committer`, `access` and `revision`. Names are deterministic; what may go with the SinkJob is
owned by it.
"""

from sinkoperator.objects.access import access
from sinkoperator.objects.committer import committer
from sinkoperator.objects.driver import driver
from sinkoperator.objects.manifests import revision

__all__ = ["access", "committer", "driver", "revision"]
