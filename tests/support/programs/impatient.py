"""hetserver that waits a second for bodies, where an ordinary one waits ten."""

from hetrdzv.api import middleware
from hetrdzv.cli.hetserver import main

ARRIVAL_S = 1.0

if __name__ == "__main__":
    middleware.ARRIVAL_S = ARRIVAL_S
    main()
