"""The floor: an ASGI application that answers everything at once, on uvicorn. Run by serving.py: PORT HTTP LOOP."""

import sys
import threading
from typing import Any

import uvicorn

BODY = (
    b'{"kind":"wait","version":"0","round":0,"code":"waiting","reason":{"code":"bare","message":"bare"},'
    b'"poll_s":2.5,"lease_s":5.0}'
)
HEADERS = [
    (b"content-type", b"application/json"),
    (b"content-length", str(len(BODY)).encode()),
    (b"het-api-version", b"1"),
]


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Answer."""
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": BODY})


class Server(uvicorn.Server):
    """Says when it listens."""

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        print("listening", flush=True)


def main() -> None:
    port, http, loop = sys.argv[1:]
    config = uvicorn.Config(
        app,
        port=int(port),
        http=http,  # type: ignore[arg-type]
        loop=loop,  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        backlog=4096,
    )
    server = Server(config)

    def end_with_parent() -> None:
        sys.stdin.read()
        server.should_exit = True

    threading.Thread(target=end_with_parent, daemon=True).start()
    server.run()


if __name__ == "__main__":
    main()
