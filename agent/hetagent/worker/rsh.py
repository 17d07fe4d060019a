"""Stands in for ssh under mpirun: hands the command line for one host to this node's agent, which passes it on.

    python -I -S rsh.py SOCKET HOST WORD...

Exits with 0 once the server has accepted it, else with 255, as ssh does, and the reason on stderr. It needs neither a
token nor a server's address: the agent that listens at SOCKET has them. Imports only the standard library.
"""

import json
import socket
import sys

FAILED = 255


def main() -> None:
    """Ask the agent, and wait for its answer."""
    path, host, *words = sys.argv[1:]
    try:
        with socket.socket(socket.AF_UNIX) as agent:
            agent.connect(path)
            agent.sendall(json.dumps({"host": host, "words": words}).encode())
            agent.shutdown(socket.SHUT_WR)
            answer = b"".join(iter(lambda: agent.recv(65_536), b""))
        refusal = json.loads(answer)["refusal"]
    except (OSError, ValueError, LookupError) as error:
        refusal = f"this node's agent does not answer ({error}): its round is over"
    if refusal is not None:
        sys.stderr.write(f"hetagent: {host} was not started: {refusal}\n")
        sys.exit(FAILED)


if __name__ == "__main__":
    main()
