"""What torch's server in a worker can be asked, and how each of these sources does. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from hetagent.monitor.flight_recorder import FlightRecorderDump, FlightRecorderParser

AGAIN_S, MAX_PAUSE_S = 5.0, 60.0
"""For how long a source that does not answer is left alone, and at most one whose answers cost much (seconds)."""

MAX_ANSWER_DELAY_S = 5.0
"""How much later than planned an answer may come until nothing is known any more (seconds)."""


@dataclass(frozen=True, slots=True)
class BackendHandlers:
    """How torch's server tells of one of torch's backends.

    Attributes:
        handler: what a server has that tells of it.
        question: what to ask.
        suffix: what is added to the names of groups: two backends may have groups of the same name.
        counts_operations: see `FlightRecorderParser`.
    """

    handler: str
    question: str
    suffix: str = ""
    counts_operations: bool = True


BACKENDS: Mapping[str, BackendHandlers] = {
    "gloo": BackendHandlers("fr_trace_json", "fr_trace_json"),
    # Never the entries: torch would ask CUDA about the events of what is not done, from a thread of the server. There
    # that makes a context on GPU 0 (half a GB for each worker, meta-pytorch/torchcomms#777), breaks the capture of a
    # CUDA graph (pytorch/pytorch#104555) and may hang, with the lock that the next collective takes.
    "nccl": BackendHandlers(
        "dump_nccl_trace_json",
        "dump_nccl_trace_json?includecollectives=false",
        "/nccl",
        counts_operations=False,
    ),
    # Its recorder has no events. Servers that know recorders by the name of a backend also write their files.
    "nccl2": BackendHandlers("fr_dump_file", "fr_trace_json?backend=nccl2", "/nccl2"),
}
"""By torch's name for the backend that a group really has. Of any other nothing is known: xccl, mpi, ucc, nccl-lazy,
those of other packages, and nccl2 in 2.14, which records nothing. docs/torch.md has the table. All are asked: what has
no groups costs little."""


@dataclass(slots=True)
class WorkerSource:
    """What a worker's server tells of one backend; without a parser which handlers it has.

    Attributes:
        why: why it does not answer now; empty: it does.
        next_at: when it is asked next (monotonic seconds).
        dump: its last answer.
    """

    name: str = ""
    question: str = ""
    parser: FlightRecorderParser | None = None
    why: str = "has not answered yet"
    next_at: float = 0.0
    dump: FlightRecorderDump | None = None

    def on_answer(self, now: float, pause_s: float) -> None:
        """It has, and is left alone for a while."""
        self.why, self.next_at = "", now + pause_s

    def on_failure(self, why: str, now: float) -> None:
        """It has not, and is asked again a while later."""
        self.why, self.next_at = why, now + AGAIN_S

    def unknown_reason(self, now: float) -> str:
        """Why nothing is known from it now; empty: something is."""
        why = self.why or ("no longer answers" if now > self.next_at + MAX_ANSWER_DELAY_S else "")
        why = why or (self.dump.unknown_reason if self.dump is not None else "")
        return why and f"{self.name} {why}".strip()


def make_sources(handlers: Collection[str], world_size: int) -> list[WorkerSource]:
    """What a server with these handlers tells."""
    return [
        WorkerSource(
            name,
            backend.question,
            FlightRecorderParser(world_size, backend.suffix, backend.counts_operations),
        )
        for name, backend in BACKENDS.items()
        if backend.handler in handlers
    ]
