"""Where the output of workers goes: torch's log files, in a directory per round."""

import dataclasses
import os
import shutil
from typing import TypeVar

from torch.distributed.elastic.multiprocessing import LogsDest, Std

from hetagent.node import scratch
from hetagent.torch_compat.flags import FolderLogs
from hetagent.workers.failures import ERROR_FILE

PREFIX = "hetagent_"

Paths = TypeVar("Paths", str, dict[int, str])


class RoundLogsSpecs(FolderLogs):
    """torch's logs, in `round_{n}` instead of `attempt_{n}`.

    torch names the directory after the restart count and empties it first. But a round that ended because a node joined
    costs no restart, so the next round would take its directory. Round numbers are never used twice.

    Args:
        log_dir: as torch's; without one, a private directory that `close` removes.
        redirects, tee, local_ranks_filter: as torch's.
    """

    def __init__(
        self,
        log_dir: str | None = None,
        redirects: Std | dict[int, Std] = Std.NONE,
        tee: Std | dict[int, Std] = Std.NONE,
        local_ranks_filter: set[int] | None = None,
    ) -> None:
        self._temporary: scratch.Folder | None = None
        if not log_dir:
            scratch.sweep(PREFIX)
            self._temporary = scratch.Folder(PREFIX)
            log_dir = str(self._temporary.path)
        super().__init__(log_dir, redirects, tee, local_ranks_filter)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Make the round's directories, and set each rank's TORCHELASTIC_ERROR_FILE.

        Args:
            envs: the environment of each local rank, with HET_ROUND.
        """
        number = envs[0]["HET_ROUND"]
        drafts = {rank: env | {"TORCHELASTIC_RESTART_COUNT": number} for rank, env in envs.items()}
        dest = super().reify(drafts)
        for rank, env in envs.items():
            env[ERROR_FILE] = drafts[rank][ERROR_FILE]
        if self.run_folder is None:
            return dest
        # torch's code makes `attempt_{number}`; renaming that saves us a copy of the code.
        attempt = os.path.join(self.run_folder, f"attempt_{number}")
        own = os.path.join(self.run_folder, f"round_{number}")
        shutil.rmtree(own, ignore_errors=True)  # only if this very round is laid out twice
        os.rename(attempt, own)
        for env in envs.values():
            env[ERROR_FILE] = _moved(env[ERROR_FILE], attempt, own)
        paths = {field.name: getattr(dest, field.name) for field in dataclasses.fields(dest)}
        return LogsDest(**{name: _moved(value, attempt, own) for name, value in paths.items()})

    @property
    def kept(self) -> str:
        """The folder where logs of this agent's rounds are and stay; empty: there is none."""
        return (
            "" if self.run_folder is None or self._temporary is not None else os.path.abspath(self.run_folder)
        )

    def close(self) -> None:
        """Remove the logs unless somebody asked for them."""
        if self._temporary is not None:
            self._temporary.close()


def _moved(paths: Paths, old: str, new: str) -> Paths:
    """A path, or each rank's, moved from `old` to `new`; the empty name stands for the console."""
    if isinstance(paths, dict):
        return {rank: _moved(path, old, new) for rank, path in paths.items()}
    return new + paths.removeprefix(old) if paths.startswith(old + os.sep) else paths
