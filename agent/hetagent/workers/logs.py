"""Where the output of workers goes: torch's log files, in a directory per round."""

import os

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsDest, Std

from hetagent.node import scratch
from hetagent.workers.failures import ERROR_FILE

PREFIX = "hetagent_"


class RoundLogsSpecs(DefaultLogsSpecs):
    """torch's logs, of round N in `attempt_N`.

    torch names the directory after the restart count and empties it first. But a round that ended because a node joined
    costs no restart, so the next round would take its directory. Round numbers are never used twice.
    """

    def __init__(
        self,
        log_dir: str | None = None,
        redirects: Std | dict[int, Std] = Std.NONE,
        tee: Std | dict[int, Std] = Std.NONE,
        local_ranks_filter: set[int] | None = None,
    ) -> None:
        self.folder = ""  # where logs of this agent's rounds are and stay; empty: they go with the agent
        self._temporary: scratch.ScratchFolder | None = None
        if not log_dir:
            scratch.remove_stale_folders(PREFIX)
            self._temporary = scratch.ScratchFolder(PREFIX)
            log_dir = str(self._temporary.path)
        super().__init__(log_dir, redirects, tee, local_ranks_filter)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Make the round's directories (HET_ROUND is in `envs`), and set each rank's TORCHELASTIC_ERROR_FILE."""
        drafts = {rank: env | {"TORCHELASTIC_RESTART_COUNT": env["HET_ROUND"]} for rank, env in envs.items()}
        dest = super().reify(drafts)
        for rank, env in envs.items():
            env[ERROR_FILE] = drafts[rank][ERROR_FILE]
        if self._temporary is None and (error_file := envs[0][ERROR_FILE]):
            self.folder = os.path.abspath(os.path.join(error_file, "../../.."))
        return dest

    def close(self) -> None:
        """Remove the logs unless somebody asked for them."""
        if self._temporary is not None:
            self._temporary.close()
