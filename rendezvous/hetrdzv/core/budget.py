"""How much a search may do: work that is counted, not timed, so that everybody who counts comes to the same answer."""


class Spent(Exception):
    """The work that was allowed is done; whoever searches answers with less."""


class Budget:
    """Work that several searches share.

    Args:
        units: about as many additions to a dict, each a sixth of a microsecond of CPU.
    """

    def __init__(self, units: int) -> None:
        self.left = units

    def spend(self, units: int) -> None:
        """Do some work.

        Raises:
            Spent: there is not enough left for it; from now on for nothing.
        """
        if not self.allows(units):
            raise Spent

    def allows(self, units: int) -> bool:
        """Do some work, if there is enough left for it; returns whether there is: from then on for nothing."""
        if self.left < units:
            self.left = 0
            return False
        self.left -= units
        return True
