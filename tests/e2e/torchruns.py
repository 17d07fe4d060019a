"""Jobs of plain torchrun with the hetrdzv plug-in: a real hetserver, real torchruns, the workload of the others."""

import contextlib
import sys
from pathlib import Path

import psutil

from tests.e2e.cluster import WORKLOAD, Agent, Cluster, marked
from tests.worklog import complaints


class Torchruns(Cluster):
    """A group whose nodes run torchrun.

    Args:
        conf: options of --rdzv-conf for all of them.
        flags: of torchrun, for all of them.
    """

    def __init__(self, folder: Path, *flags: str, conf: str = "") -> None:
        super().__init__(folder, *flags)
        self.conf = conf

    def __exit__(self, *_: object) -> None:
        for agent in self._all:  # first, or torchrun would start workers anew
            with contextlib.suppress(ProcessLookupError):
                agent.process.kill()
        for pid in marked():  # nobody else ends the workers of a torchrun that was killed
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(pid).kill()
        super().__exit__(None, None, None)

    def complaints(self) -> list[str]:
        """What is wrong with what workers logged; restarts are counted by each node's agent for itself."""
        return complaints([line | {"restart": 0} for line in self.log.lines()])

    def end_well(self, *names: str) -> None:
        """Let the workload end, and the group succeed, which no torchrun waits for."""
        self.finish_all(*names)
        self.wait_for(lambda: self.group()["state"] == "succeeded", "success of the group", 5)

    def torchrun(
        self,
        name: str,
        slots: int,
        *flags: str,
        conf: str = "",
        script: Path = WORKLOAD,
        endpoint: str | None = None,
        env: dict[str, str] | None = None,
    ) -> Agent:
        """Start torchrun as a node; its script gets `--into` and the log's folder."""
        options = ",".join(filter(None, [f"node_id={name}", f"slots={slots}", self.conf, conf]))
        rendezvous = {
            "--rdzv-backend": "hetrdzv",
            "--rdzv-endpoint": self.server.url if endpoint is None else endpoint,
            "--rdzv-id": "job",
            "--rdzv-conf": options,
            "--nproc-per-node": str(slots),
        }
        words = [word for pair in rendezvous.items() for word in pair]
        command = [sys.executable, "-m", "torch.distributed.run", *words, *self.flags, *flags]
        command += [str(script), "--into", str(self.log.folder)]
        return self.run(name, command, {"OMP_NUM_THREADS": "1"} | (env or {}))
