"""Where the output of workers goes: changes when its layout on disk does."""

import dataclasses
import os
import shutil
from typing import TypeVar

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsDest, Std
from torch.distributed.elastic.multiprocessing.api import to_map

from hetagent import scratch

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
PREFIX = "hetagent_"

Paths = TypeVar("Paths", str, dict[int, str])


class RoundLogsSpecs(DefaultLogsSpecs):
    """torch's logs, in `round_{n}` instead of `attempt_{n}`.

    torch names the directory after the restart count and removes it first; but a round that a joiner ended
    costs no restart, so the next one would take its directory. Rounds are never numbered alike.

    Args:
        log_dir: as torch's; without one, a private directory that `close` removes.
        redirects, tee, local_ranks_filter: as torch's.
        capture_stderr: keep every rank's stderr in a file too, so that its end can be told; the console gets
            it as before where it did, though with torch's prefix of a tee.
    """

    def __init__(
        self,
        log_dir: str | None = None,
        redirects: Std | dict[int, Std] = Std.NONE,
        tee: Std | dict[int, Std] = Std.NONE,
        local_ranks_filter: set[int] | None = None,
        *,
        capture_stderr: bool = False,
    ) -> None:
        self._temporary: scratch.Folder | None = None
        if not log_dir:
            scratch.sweep(PREFIX)
            self._temporary = scratch.Folder(PREFIX)
            log_dir = str(self._temporary.path)
        super().__init__(log_dir, redirects, tee, local_ranks_filter)
        self._asked_tee = tee
        self.capture_stderr = capture_stderr

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Make the round's directories; sets each rank's TORCHELASTIC_ERROR_FILE.

        Args:
            envs: the environment of each local rank, with HET_ROUND.
        """
        if self.capture_stderr:
            self._tee = self._tee_with_stderr(len(envs))
        number = envs[0]["HET_ROUND"]
        drafts = {rank: env | {"TORCHELASTIC_RESTART_COUNT": number} for rank, env in envs.items()}
        dest = super().reify(drafts)
        for rank, env in envs.items():
            env[ERROR_FILE] = drafts[rank][ERROR_FILE]
        if self._root_log_dir == os.devnull:
            return dest
        # torch's code makes `attempt_{number}`; renaming it afterwards saves a copy of that code.
        attempt = os.path.join(str(self._run_log_dir), f"attempt_{number}")
        own = os.path.join(str(self._run_log_dir), f"round_{number}")
        shutil.rmtree(own, ignore_errors=True)  # only where this very round is laid out twice
        os.rename(attempt, own)
        for env in envs.values():
            env[ERROR_FILE] = _moved(env[ERROR_FILE], attempt, own)
        paths = {field.name: getattr(dest, field.name) for field in dataclasses.fields(dest)}
        return LogsDest(**{name: _moved(value, attempt, own) for name, value in paths.items()})

    def close(self) -> None:
        """Remove the logs, if nobody asked to keep them."""
        if self._temporary is not None:
            self._temporary.close()

    def _tee_with_stderr(self, ranks: int) -> dict[int, Std]:
        redirects, tee = to_map(self._redirects, ranks), to_map(self._asked_tee, ranks)
        kept = {rank: (redirects[rank] | tee[rank]) & Std.ERR for rank in range(ranks)}
        return {rank: tee[rank] if kept[rank] else tee[rank] | Std.ERR for rank in range(ranks)}


def _moved(paths: Paths, old: str, new: str) -> Paths:
    """A path, or each rank's, under `new` where it was under `old`; the empty name stands for the console."""
    if isinstance(paths, dict):
        return {rank: _moved(path, old, new) for rank, path in paths.items()}
    return new + paths.removeprefix(old) if paths.startswith(old + os.sep) else paths
