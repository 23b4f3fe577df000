"""A small HTTP server for what the operator shows of itself: its metrics, and whether it is well.

The application enters `serve` once per port. It only reads: every path answers GET, by one function, in the event loop
of the operator (so a loop that hangs answers nothing, which is what a liveness probe is to see).
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

from aiohttp import web

#: A scraper that is slower than this is left alone at the end.
SHUTDOWN_SECONDS = 1.0


Answer = tuple[int, str, bytes]
"""Status code, content type, text."""

Page = Callable[[], Awaitable[Answer]]


@asynccontextmanager
async def serve(pages: Mapping[str, Page], port: int, host: str = "") -> AsyncIterator[int]:
    """Answer these paths until the end of the block; gives the port, which is a free one where 0 was asked for.

    Without a host: at every address of this machine, of both families, for a cluster's pods may have one of them only.
    """
    app = web.Application()
    app.add_routes([web.get(path, _handler(page)) for path, page in pages.items()])
    runner = web.AppRunner(app, handle_signals=False, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)
    await runner.setup()
    try:
        await (web.TCPSite(runner, host, port) if host else web.SockSite(runner, _everywhere(port))).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def _everywhere(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def _handler(page: Page) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_: web.Request) -> web.Response:
        status, content_type, text = await page()
        return web.Response(
            status=status, body=text, headers={"Content-Type": content_type, "Cache-Control": "no-store"}
        )

    return answer
