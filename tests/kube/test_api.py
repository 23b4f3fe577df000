"""The verbs of `Api` against a real API server."""

from __future__ import annotations

from sinkruntime.kube import CONFIG_MAP, Api


async def test_what_is_created_is_read_listed_and_deleted(api: Api, namespace: str) -> None:
    made = await api.create(
        CONFIG_MAP, namespace, {"metadata": {"name": "a", "labels": {"x": "1"}}, "data": {"k": "v"}}
    )
    assert (made["kind"], made["data"]) == ("ConfigMap", {"k": "v"})
    read = await api.get(CONFIG_MAP, namespace, "a")
    assert read == made
    listed, version = await api.list(CONFIG_MAP, namespace, labels="x=1")
    assert [one["metadata"]["name"] for one in listed] == ["a"]
    assert int(version) >= int(made["metadata"]["resourceVersion"])
    assert await api.delete(CONFIG_MAP, namespace, "a")
    assert not await api.delete(CONFIG_MAP, namespace, "a")
    assert await api.get(CONFIG_MAP, namespace, "a") is None
