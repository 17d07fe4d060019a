"""hetserver that waits a second for headers and bodies, where an ordinary one waits ten."""

from hetrdzv.api.http import connections
from hetrdzv.cli.hetserver import main

ARRIVAL_S = 1.0

if __name__ == "__main__":
    connections.ARRIVAL_S = ARRIVAL_S
    main()
