"""What a worker is given when it opens a sink: the revision's manifest, its secrets, the job's own identity.

`handle` calls it on every opening, so a rotated secret is read again. It parses nothing that a person wrote further
than to find the names it must look up, it reads objects by name only, and nothing that it returns is kept.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sinkoperator import names
from sinkoperator.commits.cloud import TOKEN_FILE, TOKEN_SECONDS, TOKEN_SECONDS_MIN, Grant, grant_of
from sinkoperator.commits.frames import Json
from sinkoperator.commits.settings import WorkerSettings
from sinkruntime.errors import ConfigurationError, SinkjobError
from sinkruntime.kube import CONFIG_MAP, CONTROLLER_REVISION, SECRET, SERVICE_ACCOUNT, Api, Forbidden, Kind, Object
from sinkruntime.spec.models import API_VERSION, KIND

log = logging.getLogger(__name__)

NO_IDENTITY: Json = {"files": {}, "environment": {}, "renew_seconds": 0}


@dataclass(frozen=True, slots=True)
class Named:
    """Of which job."""

    namespace: str
    job: str
    ledger_id: str


class Resolver:
    """Resolves for one job."""

    def __init__(self, api: Api, of: Named, settings: WorkerSettings) -> None:
        self._api = api
        self._of = of
        self._settings = settings

    async def opening(self, revision: str, sink: str) -> Json:
        """Everything that a worker needs to open this sink. Raises `SinkjobError`; nothing had an effect."""
        spec = await self._spec(revision)
        asked = list(references(spec, sink))
        secrets = {name: await self._secret(name) for kind, name in asked if kind == "secretRef"}
        config_maps = {name: await self._config_map(name) for kind, name in asked if kind == "configMapRef"}
        meta = {"name": self._of.job, "namespace": self._of.namespace}
        return {
            "manifest": {"apiVersion": API_VERSION, "kind": KIND, "metadata": meta, "spec": spec},
            "sink": sink,
            "ledger_id": self._of.ledger_id,
            "secrets": secrets,
            "configMaps": config_maps,
            "identity": await self._identity(spec, has_own_keys=bool(asked)),
            "egress": self._settings.egress.texts(),
        }

    async def _spec(self, revision: str) -> Json:
        name = names.revision_name(self._of.job, revision)
        found = await self._api.get(CONTROLLER_REVISION, self._of.namespace, name)
        spec = ((found or {}).get("data") or {}).get("spec")
        if not isinstance(spec, dict):
            message = f"the ControllerRevision {self._of.namespace}/{name}, which a checkpoint needs, is missing"
            raise ConfigurationError("RevisionLost", message, advice="restore it from a backup")
        return spec

    async def _object(self, kind: Kind, name: str) -> Object:
        found = await self._api.get(kind, self._of.namespace, name)
        if found is None:
            message = f"there is no {kind.name} `{name}` in the namespace {self._of.namespace}"
            advice = "create it; what is decided waits, and is committed then"
            raise ConfigurationError(f"{kind.name}NotFound", message, advice=advice)
        return found

    async def _secret(self, name: str) -> dict[str, str]:
        found = await self._object(SECRET, name)
        return {key: _text(value, SECRET, name, key) for key, value in (found.get("data") or {}).items()}

    async def _config_map(self, name: str) -> dict[str, str]:
        found = await self._object(CONFIG_MAP, name)
        binary = {key: _text(value, CONFIG_MAP, name, key) for key, value in (found.get("binaryData") or {}).items()}
        return {**binary, **(found.get("data") or {})}

    async def _identity(self, spec: Mapping[str, Any], has_own_keys: bool) -> Json:
        """The job's own identity, with a fresh token: files and environment; empty where it has none.

        Raises `ConfigurationError` where it has one that this operator may not ask for, and no keys beside it.
        """
        account = spec.get("serviceAccountName") or self._settings.default_service_account
        account = account or names.access_name(self._of.job)
        grant = await self._grant(account)
        if grant is None:
            return NO_IDENTITY
        try:
            token = await self._api.token(self._of.namespace, account, audience=grant.audience, seconds=TOKEN_SECONDS)
        except Forbidden as error:
            if has_own_keys:
                log.warning("job %s/%s goes without its own identity: %s", *self._job, error.message)
                return NO_IDENTITY
            message = f"no token of the ServiceAccount `{account}` can be had for {grant.audience}: {error.message}"
            advice = "let the operator create serviceaccounts/token, give the sink keys, or set commit.runOn: Driver"
            raise ConfigurationError("TokenRefused", message, advice=advice) from error
        return {
            "files": {**grant.files, TOKEN_FILE: token},
            "environment": dict(grant.environment),
            "renew_seconds": life_seconds(token) / 2,
        }

    @property
    def _job(self) -> tuple[str, str]:
        return self._of.namespace, self._of.job

    async def _grant(self, account: str) -> Grant | None:
        try:
            found = await self._api.get(SERVICE_ACCOUNT, self._of.namespace, account)
        except Forbidden as error:
            log.warning("job %s/%s has no identity of its own: %s", *self._job, error.message)
            return None
        return grant_of(((found or {}).get("metadata") or {}).get("annotations") or {})


def life_seconds(token: str) -> float:
    """How long a service account's token lives: the server may have given it another life than was asked for."""
    try:
        middle = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(middle + "=" * (-len(middle) % 4)))
        return float(claims["exp"] - claims["iat"])
    except (IndexError, KeyError, TypeError, ValueError):
        return TOKEN_SECONDS_MIN


def references(spec: Mapping[str, Any], sink: str) -> Iterator[tuple[str, str]]:
    """What the sink's `optionsFrom` refers to, as (`secretRef` or `configMapRef`, name). What is malformed is left
    out here; the worker, which reads the manifest, says what is wrong."""
    sinks = spec.get("sinks")
    for found in sinks if isinstance(sinks, list) else []:
        entries = found.get("optionsFrom") if isinstance(found, dict) and found.get("name") == sink else None
        for entry in entries if isinstance(entries, list) else []:
            for kind in ("secretRef", "configMapRef"):
                named = entry.get(kind) if isinstance(entry, dict) else None
                if isinstance(named, dict) and isinstance(named.get("name"), str) and named["name"]:
                    yield kind, named["name"]


def _text(value: str, kind: Kind, name: str, key: str) -> str:
    try:
        return base64.b64decode(value).decode("utf-8-sig")
    except ValueError:
        # From None: the error would hold the value.
        message = f"the key `{key}` of the {kind.name} `{name}` is not UTF-8 text"
        raise SinkjobError(f"{kind.name}Unreadable", message, "an option's value is text") from None
