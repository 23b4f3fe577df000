"""The committer pod of `runOn: Job` with its ConfigMap: the manifest that is asked for, and nothing left behind."""

from __future__ import annotations

import json

from sinkoperator import names
from sinkruntime.kube import CONFIG_MAP, POD, SINK_JOB, Api, Object
from tests.kube.operator_world import Looker, manifest


def by_the_job() -> Object:
    """A job whose sink commits in a pod of its own."""
    body = manifest()
    body["spec"]["sinks"][0]["commit"] = {"runOn": "Job"}
    return body


async def patch(api: Api, namespace: str, **spec: object) -> None:
    """A person edits the job."""
    await api.patch(SINK_JOB, namespace, "one", {"spec": spec})


async def committers(looker: Looker) -> list[Object]:
    """The committer pods."""
    return [pod for pod in await looker.pods() if pod["metadata"]["labels"][names.COMPONENT_LABEL] == names.COMMITTER]


async def left_behind(looker: Looker) -> list[str]:
    """The ConfigMaps of committers."""
    return [name for name in await looker.config_maps() if name.startswith("one-committer-")]


async def suspend(api: Api, looker: Looker) -> None:
    """A person suspends the job, and everything of it ends."""
    await patch(api, looker.namespace, suspend=True)

    async def quiet() -> bool:
        for pod in await looker.pods():
            await api.delete(POD, looker.namespace, pod["metadata"]["name"], grace_seconds=0)
        return (await looker.status()).get("phase") == "Suspended" and not await looker.pods()

    await looker.settle(quiet)


async def test_the_committer_of_an_edited_job_reads_the_edited_manifest(api: Api, namespace: str) -> None:
    """Its number begins anew where no committer pod is there any more; what an older one read must not come back."""
    await api.create(SINK_JOB, namespace, by_the_job())
    async with Looker(api, namespace) as looker:
        await looker.settle(lambda: committers(looker))
        await suspend(api, looker)
        await patch(api, namespace, suspend=False, sparkConf={"spark.sql.shuffle.partitions": "7"})

        pod = (await looker.settle(lambda: committers(looker)))[0]

        config = await api.get(CONFIG_MAP, namespace, pod["metadata"]["name"])
        assert config is not None
        assert config["metadata"]["labels"][names.REVISION_LABEL] == pod["metadata"]["labels"][names.REVISION_LABEL]
        assert json.loads(config["data"]["job.json"])["spec"]["sparkConf"] == {"spark.sql.shuffle.partitions": "7"}


async def test_configmaps_of_committers_that_are_gone_are_removed(api: Api, namespace: str) -> None:
    await api.create(SINK_JOB, namespace, by_the_job())
    async with Looker(api, namespace) as looker:
        for nonce in range(1, 5):
            await patch(api, namespace, restartNonce=nonce)
            intended = f"/{nonce}/"

            async def taken_over(intended: str = intended) -> bool:
                found = await committers(looker)
                return len(found) == 1 and intended in found[0]["metadata"]["annotations"][names.INTENT_ANNOTATION]

            await looker.settle(taken_over)

        async def tidy() -> bool:
            return await left_behind(looker) == [pod["metadata"]["name"] for pod in await committers(looker)]

        await looker.settle(tidy)
