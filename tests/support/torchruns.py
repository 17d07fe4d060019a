"""Jobs of plain torchrun with the hetrdzv plug-in: a real hetserver, real torchruns, the usual workload."""

import contextlib
import socket
import sys
from pathlib import Path

import psutil

from tests.support.cluster import WORKLOAD, Agent, Cluster, marked
from tests.support.programs.start import COLD
from tests.support.workload.worklog import complaints


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
        for agent in self._all:  # first, or torchrun would restart the workers
            with contextlib.suppress(ProcessLookupError):
                agent.process.kill()
        for pid in marked():  # nothing else ends the workers of a killed torchrun
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(pid).kill()
        super().__exit__(None, None, None)

    def complaints(self) -> list[str]:
        """What is wrong with what workers logged; each node's agent counts restarts for itself."""
        return complaints([line | {"restart": 0} for line in self.log.lines()])

    def end_well(self, *names: str) -> None:
        """Let the workload end; then the group must succeed, which torchrun does not wait for."""
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
        """Start torchrun as a node; its script gets `--into` and the log's folder. A name of this host is not given."""
        own = "" if name.startswith(socket.gethostname()) else f"node_id={name}"
        options = ",".join(filter(None, [own, self.conf, conf]))
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
        if script == WORKLOAD and self.light and not COLD:
            command += ["--light"]
        return self.run(name, command, {"OMP_NUM_THREADS": "1"} | (env or {}))
