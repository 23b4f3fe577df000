"""The last lines of a failed driver's log, for people: fetched once per pod, bounded, the job's secrets hidden.

Called by `gather` for the newest pod that has ended. What cannot be fetched is left out: a log decides nothing.
The secrets are read to be hidden, and forgotten at once.
"""

from __future__ import annotations

import base64
import binascii
from collections import OrderedDict
from collections.abc import Iterable

from sinkruntime.cli.secrecy import SECRET_CHARS_MIN
from sinkruntime.kube import SECRET, Api, ApiError, Invalid, NotFound, Object
from sinkruntime.spec.models import SinkJobSpec
from sinkruntime.spec.options_from import Secrets

LINES_MAX = 20
CHARS_MAX = 2000
#: Tails that are remembered; a status shows one per job.
TAILS_MAX = 1000

NOT_SHOWN = "(the log is not shown: the job's secrets could not be read, so they could not be hidden)"


class JobLogs:
    """The tails that were fetched, by the uid of the pod."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._tails: OrderedDict[str, str] = OrderedDict()

    def known(self, pod_uid: str) -> str | None:
        """The tail, where it was fetched already."""
        return self._tails.get(pod_uid)

    async def fetch(self, pod: Object, container: str, spec: SinkJobSpec | None) -> str:
        """The tail of the pod's log; "" where there is none to be had."""
        metadata = pod["metadata"]
        namespace, uid = metadata["namespace"], metadata["uid"]
        if uid in self._tails:
            return self._tails[uid]
        try:
            text = await self._api.log_tail(namespace, metadata["name"], lines=LINES_MAX, container=container)
        except (NotFound, Invalid):
            text = ""  # gone with its node, or never started
        except ApiError:
            return ""  # a later look asks again
        if text:
            hidden = await self._secrets(pod, spec)
            text = NOT_SHOWN if hidden is None else hidden.hide(text)[-CHARS_MAX:]
        self._tails[uid] = text
        while len(self._tails) > TAILS_MAX:
            self._tails.popitem(last=False)
        return text

    async def _secrets(self, pod: Object, spec: SinkJobSpec | None) -> Secrets | None:
        """All values of the Secrets that the job names, or its pod has mounted for an older manifest; None where one
        cannot be read, or is gone since the pod has read it."""
        if spec is None:
            return None
        values: set[str] = set()
        mounted = mounted_secrets(pod)
        for name in sorted({*secret_names(spec), *mounted}):
            try:
                found = await self._api.get(SECRET, pod["metadata"]["namespace"], name)
            except ApiError:
                return None
            if found is None and mounted.get(name):
                return None
            for encoded in ((found or {}).get("data") or {}).values():
                text = _text(encoded)
                values |= {text, *text.splitlines()}  # a log may show a single line of a key file
        return Secrets({str(n): value for n, value in enumerate(values) if len(value) >= SECRET_CHARS_MIN})


def mounted_secrets(pod: Object) -> dict[str, bool]:
    """The Secrets among the pod's volumes; True: it cannot have started without."""
    volumes = [volume.get("secret") or {} for volume in (pod.get("spec") or {}).get("volumes") or []]
    return {found["secretName"]: not found.get("optional") for found in volumes if found.get("secretName")}


def secret_names(spec: SinkJobSpec) -> Iterable[str]:
    """The Secrets whose keys are options of the job."""
    for entry in (
        *spec.source.options_from,
        *spec.checkpoint.options_from,
        *(entry for sink in spec.sinks for entry in sink.options_from),
    ):
        if entry.secret_ref is not None:
            yield entry.secret_ref.name


def _text(encoded: str) -> str:
    try:
        return base64.b64decode(encoded).decode().removesuffix("\n")
    except (binascii.Error, UnicodeDecodeError):
        return ""  # not text: it cannot be an option, and is no line of a log
