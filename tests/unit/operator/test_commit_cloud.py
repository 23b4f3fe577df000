"""A job's own identity: what a service account's annotations grant, as each cloud's libraries expect it."""

from __future__ import annotations

import json

from sinkoperator.commits.cloud import grant_of


def test_a_service_account_without_annotations_grants_nothing() -> None:
    assert grant_of({}) is None
    assert grant_of({"team": "data", "iam.gke.io/gcp-service-account": "a@b"}) is None


def test_amazon_gets_a_role_and_a_token_file() -> None:
    found = grant_of({"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/job"})
    assert found is not None
    assert (found.audience, found.files) == ("sts.amazonaws.com", {})
    assert found.environment == {
        "AWS_ROLE_ARN": "arn:aws:iam::1:role/job",
        "AWS_WEB_IDENTITY_TOKEN_FILE": "{folder}/token",
        "AWS_ROLE_SESSION_NAME": "sinkjob",
        "AWS_STS_REGIONAL_ENDPOINTS": "regional",
    }


def test_amazon_s_audience_and_endpoint_can_be_others() -> None:
    found = grant_of(
        {
            "eks.amazonaws.com/role-arn": "arn",
            "eks.amazonaws.com/audience": "mine",
            "eks.amazonaws.com/sts-regional-endpoints": "false",
        }
    )
    assert found is not None
    assert (found.audience, found.environment["AWS_STS_REGIONAL_ENDPOINTS"]) == ("mine", "legacy")


def test_azure_gets_client_tenant_and_a_token_file() -> None:
    found = grant_of({"azure.workload.identity/client-id": "c", "azure.workload.identity/tenant-id": "t"})
    assert found is not None
    assert found.audience == "api://AzureADTokenExchange"
    assert found.environment["AZURE_FEDERATED_TOKEN_FILE"] == "{folder}/token"
    assert (found.environment["AZURE_CLIENT_ID"], found.environment["AZURE_TENANT_ID"]) == ("c", "t")


def test_google_gets_a_credential_file_for_a_named_provider() -> None:
    provider = "projects/1/locations/global/workloadIdentityPools/p/providers/k8s"
    found = grant_of({"sinkjob.io/gcp-identity-provider": provider, "iam.gke.io/gcp-service-account": "a@b"})
    assert found is not None
    assert found.audience == f"https://iam.googleapis.com/{provider}"
    assert found.environment == {"GOOGLE_APPLICATION_CREDENTIALS": "{folder}/google.json"}
    document = json.loads(found.files["google.json"])
    assert document["credential_source"] == {"file": "{folder}/token"}
    assert document["audience"] == f"//iam.googleapis.com/{provider}"
    assert document["service_account_impersonation_url"].endswith("/a@b:generateAccessToken")
