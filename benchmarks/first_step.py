"""Runs a script, and notes when this process makes its first optimizer step: LOG SCRIPT ARGS..."""

import json
import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook


def main() -> None:
    log, *sys.argv = sys.argv[1:]

    def note(*_: Any) -> None:
        hook.remove()
        line = {"rank": int(os.environ["RANK"]), "pid": os.getpid(), "at": time.monotonic()}
        with Path(log).open("a") as file:
            file.write(json.dumps(line) + "\n")

    hook = register_optimizer_step_post_hook(note)
    sys.path[0] = str(Path(sys.argv[0]).parent.resolve())
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
