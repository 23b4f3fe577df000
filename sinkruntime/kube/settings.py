"""How the API server is reached and how long anything may take. Made by the entry points and by tests."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """`kubeconfig` and `context`: "" takes the pod's service account where there is one, else KUBECONFIG's files
    (`~/.kube/config`) and their current context. A named kubeconfig is used even in a pod."""

    kubeconfig: str = ""
    context: str = ""

    #: Of one request, with connecting, which has a limit of its own.
    request_seconds: float = 15.0
    connect_seconds: float = 5.0
    #: An idle connection is kept for the next request: a TLS handshake costs more than the request.
    idle_seconds: float = 60.0
    #: Objects in one page of a list; what kubectl takes.
    page_objects: int = 500

    #: A watch that hears nothing for so long is dead: the server sends bookmarks about each minute.
    watch_silence_seconds: float = 70.0
    #: The server ends a watch after this time, and it goes on where it was: connections move to other servers.
    watch_seconds: int = 290
    #: Waits of a watch before it lists again: doubling from the first to the last, each 50 to 100 % of it.
    watch_first_wait_seconds: float = 0.1
    watch_last_wait_seconds: float = 5.0
