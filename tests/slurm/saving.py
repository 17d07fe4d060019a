"""The workload with a worker that, warned by SIGUSR1, writes down who it was and ends well: `saved.RANK.ROUND`."""

import os
import runpy
import signal
import sys
from pathlib import Path

WORKLOAD = Path(__file__).resolve().parents[1] / "support" / "workload" / "worker.py"


def main() -> None:
    """Run the workload; takes its arguments."""
    into = Path(sys.argv[sys.argv.index("--into") + 1])
    saved = into / f"saved.{os.environ['RANK']}.{os.environ['HET_ROUND']}"

    def save(*_: object) -> None:
        saved.touch()
        os._exit(0)  # a peer may be gone already: nothing is left to be said to it

    signal.signal(signal.SIGUSR1, save)
    sys.path.insert(0, str(WORKLOAD.parent))
    runpy.run_path(str(WORKLOAD), run_name="__main__")


if __name__ == "__main__":
    main()
