"""Connections to clients that may be slow or may never finish a request. uvicorn waits for such clients forever."""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

PATIENCE = 30  # seconds that a client has to send a request; a request of 1 MiB needs 0.3 Mbit/s


class Connection(H11Protocol):
    """An HTTP connection that knows since when the server waits for the client.

    If there are too many connections, the server drops the connection that it has waited for longest. Therefore,
    clients that send nothing never shut others out.
    """

    _since = 0.0
    _cycle: RequestResponseCycle | None = None  # the newest request when _since was set

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Start to wait for a request. If there are too many connections, drop one of them."""
        super().connection_made(transport)
        self._since = self.loop.time()
        assert self.limit_concurrency is not None  # QuietServer sets it
        if len(self.connections) >= self.limit_concurrency:
            min(connections_of(self.server_state), key=Connection.waiting_since).drop()

    def waiting_since(self) -> float:
        """Return when the server began to wait for the client. While it sends an answer, this is the current time."""
        cycle = self.cycle
        is_answering = cycle is not None and not cycle.more_body and not cycle.response_complete
        if cycle is not self._cycle or (is_answering and not self.flow.write_paused):
            self._cycle = cycle
            self._since = self.loop.time()
        return self._since

    def drop_if_late(self) -> None:
        """Drop the connection if the server has waited for PATIENCE seconds."""
        if self.loop.time() - self.waiting_since() > PATIENCE:
            self.drop()

    def drop(self) -> None:
        """Close the connection at once."""
        self.connections.discard(self)
        self.transport.abort()


def connections_of(state: ServerState) -> list[Connection]:
    """Return the open connections of a server."""
    return [one for one in state.connections if isinstance(one, Connection)]
