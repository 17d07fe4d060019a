"""What ends an agent, or keeps it from starting workers: each text says what to change."""


class UsageError(ValueError):
    """The command line makes no sense, or asks for what is not here; `advice`: what to do, where that is not plain."""

    def __init__(self, finding: str, advice: str = "") -> None:
        super().__init__(f"{finding}: {advice}" if advice else finding)
        self.finding, self.advice = finding, advice


class AgentError(RuntimeError):
    """This node cannot continue."""


class CommandError(ValueError):
    """A command that cannot be started here."""


class PermanentStartError(CommandError):
    """Trying again would not help."""


class OutOfResourcesError(CommandError):
    """This node lacks what it takes to start a process; others may have it."""


class UnevenRanksError(PermanentStartError):
    """The command cannot be right on the nodes of this round."""
