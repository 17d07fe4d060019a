"""What docker asks a container: does hetserver answer, or does a server hear this node's agent. Stdlib, 0.1 s."""

import http.client
import json
import os
import socket
import sys
import urllib.error
import urllib.request
from pathlib import Path

TIMEOUT_S = 2


def server() -> str | None:
    """Whether hetserver answers here; returns what is wrong."""
    connection = http.client.HTTPConnection("127.0.0.1", 29400, timeout=TIMEOUT_S)
    connection.request("GET", "/readyz")
    answer = connection.getresponse()
    return None if answer.status == 200 else f"/readyz: {answer.status} {answer.read()[:200]!r}"


def agent() -> str | None:
    """Whether a server hears this host's agent; returns what is wrong.

    The environment names the servers, the group and the token file, as hetagent's flags do.
    """
    node, group = socket.gethostname(), os.environ.get("HET_GROUP", "default")
    token = Path(os.environ["HET_TOKEN_FILE"]).read_text(encoding="utf-8").strip()
    wrong = "HET_SERVER names no server"
    for url in os.environ["HET_SERVER"].split(","):
        request = urllib.request.Request(
            f"{url}/v1/groups/{group}", headers={"Authorization": f"Bearer {token}"}
        )
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                heard = {one["node_id"]: one["heard_s_ago"] for one in json.load(answer)["nodes"]}
        except OSError as error:
            wrong = f"{url}: {error}"
            continue
        return None if heard.get(node) is not None else f"{url} does not hear node {node}"
    return wrong


def main() -> None:
    """Exits with 0 when all is well, else says what is not."""
    try:
        wrong = {"server": server, "agent": agent}[sys.argv[1]]()
    except OSError as error:
        wrong = str(error)
    if wrong:
        sys.exit(wrong)


if __name__ == "__main__":
    main()
