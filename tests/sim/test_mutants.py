"""The faults that are planted on purpose can still be planted: their lines are still there."""

from tests.core.mutants import MUTANTS
from tests.sim.mutants import MUTANTS as OF_THE_SIMULATION
from tests.support.mutants import ROOT


def test_every_mutant_applies() -> None:
    gone = [
        one.what for one in (*MUTANTS, *OF_THE_SIMULATION) if one.old not in (ROOT / one.file).read_text()
    ]
    assert gone == []
