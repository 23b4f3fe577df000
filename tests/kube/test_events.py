"""The API server takes our Events, and raises their counts."""

from __future__ import annotations

import asyncio
import time

from sinkoperator.events import Events
from sinkruntime.environment import Environment
from sinkruntime.kube import CONFIG_MAP, EVENT, Api, Object


async def test_events_are_taken_and_their_count_raised(api: Api, namespace: str) -> None:
    job = await api.create(CONFIG_MAP, namespace, {"metadata": {"name": "flights" + "." + "x" * 200}})
    async with Events(api, Environment.real(), "operator-" + "0" * 200) as events:
        for text in ("one", "ü" * 2000):
            events.post(job, "DriverOOMKilled", text, warning=True)
            deadline = time.monotonic() + 10.0
            found: list[Object] = []
            while time.monotonic() < deadline and not any(event["message"][0] == text[0] for event in found):
                await asyncio.sleep(0.05)
                found, _ = await api.list(EVENT, namespace)
    (event,) = found
    assert (event["count"], event["type"], event["reason"]) == (2, "Warning", "DriverOOMKilled")
    assert event["involvedObject"]["uid"] == job["metadata"]["uid"]
