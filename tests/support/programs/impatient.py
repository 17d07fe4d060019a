"""hetserver that waits a second for bodies, where an ordinary one waits ten."""

from hetrdzv.api.http import body
from hetrdzv.cli.hetserver import main

ARRIVAL_S = 1.0

if __name__ == "__main__":
    body.ARRIVAL_S = ARRIVAL_S
    main()
