"""A job's own identity in a cloud, as its ServiceAccount's annotations tell: which token to ask for, which files and
environment the cloud's libraries then expect. Pure.

`opening` calls it. The annotations are those that each cloud has for workload identity; the operator does for a worker
what the cloud's admission webhook does for a pod. `{folder}` stands for the worker's private folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

#: Asked for; a server may give a shorter or a longer one. Renewed when half of it is over.
TOKEN_SECONDS = 3600
#: No server gives a shorter one (TokenRequest's documentation).
TOKEN_SECONDS_MIN = 600.0
TOKEN_FILE = "token"

# Amazon EKS, "IAM roles for service accounts".
AWS_ROLE = "eks.amazonaws.com/role-arn"
AWS_AUDIENCE = "eks.amazonaws.com/audience"
AWS_REGIONAL = "eks.amazonaws.com/sts-regional-endpoints"
# Azure Workload Identity.
AZURE_CLIENT = "azure.workload.identity/client-id"
AZURE_TENANT = "azure.workload.identity/tenant-id"
AZURE_AUTHORITY = "https://login.microsoftonline.com/"
# Google Cloud: GKE's own annotation needs its metadata server, which workers cannot reach; workload identity federation
# works with a file, and needs the provider's name.
GOOGLE_ACCOUNT = "iam.gke.io/gcp-service-account"
GOOGLE_PROVIDER = "sinkjob.io/gcp-identity-provider"


@dataclass(frozen=True, slots=True)
class Grant:
    """A token for `audience`, in the file `TOKEN_FILE`; further files and environment variables beside it."""

    audience: str
    environment: Mapping[str, str]
    files: Mapping[str, str] = field(default_factory=dict)


def grant_of(annotations: Mapping[str, str]) -> Grant | None:
    """What the annotations grant; None: nothing, and then a sink finds no credentials but those of its options.

    Of a service account with several clouds' annotations the first counts: Amazon, Azure, Google.
    """
    token = f"{{folder}}/{TOKEN_FILE}"
    if role := annotations.get(AWS_ROLE):
        regional = "legacy" if annotations.get(AWS_REGIONAL) == "false" else "regional"
        environment = {
            "AWS_ROLE_ARN": role,
            "AWS_WEB_IDENTITY_TOKEN_FILE": token,
            "AWS_ROLE_SESSION_NAME": "sinkjob",
            "AWS_STS_REGIONAL_ENDPOINTS": regional,
        }
        return Grant(annotations.get(AWS_AUDIENCE) or "sts.amazonaws.com", environment)
    if client := annotations.get(AZURE_CLIENT):
        environment = {
            "AZURE_CLIENT_ID": client,
            "AZURE_TENANT_ID": annotations.get(AZURE_TENANT, ""),
            "AZURE_FEDERATED_TOKEN_FILE": token,
            "AZURE_AUTHORITY_HOST": AZURE_AUTHORITY,
        }
        return Grant("api://AzureADTokenExchange", environment)
    if provider := annotations.get(GOOGLE_PROVIDER):
        audience = f"//iam.googleapis.com/{provider.removeprefix('//iam.googleapis.com/')}"
        files = {"google.json": _google(audience, annotations.get(GOOGLE_ACCOUNT, ""))}
        return Grant(f"https:{audience}", {"GOOGLE_APPLICATION_CREDENTIALS": "{folder}/google.json"}, files)
    return None


def _google(audience: str, account: str) -> str:
    """A credential configuration of workload identity federation."""
    document: dict[str, object] = {
        "type": "external_account",
        "audience": audience,
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": "https://sts.googleapis.com/v1/token",
        "credential_source": {"file": "<folder>/" + TOKEN_FILE},
    }
    if account:
        document["service_account_impersonation_url"] = (
            f"https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/{account}:generateAccessToken"
        )
    return json.dumps(document).replace("<folder>", "{folder}")
