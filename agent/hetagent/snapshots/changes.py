"""Whether it is known what has changed parameters: optimizers report their steps, and torch counts changes in place."""

from hetagent.snapshots.state import State


class ParameterChanges:
    """What has changed a state's parameters since the last step."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._versions = 0  # of parameters, after the last step; 0: none was made
        self.unknown_steps = 0  # in a row, of which it is not known what has changed them
        self.is_in_step = False  # an optimizer has begun to change them since then
        self.has_reports = False  # an optimizer ever has
        self.uses_graphs = False  # an optimizer's step, by a CUDA graph: from then on none reports
        self.has_other_writers = False  # something else ever has changed them, or such a graph may have

    def before_optimizer_step(self) -> None:
        """An optimizer is about to change them."""
        self.has_other_writers |= self.has_unreported_change()
        self.is_in_step = self.has_reports = True

    def on_capture(self) -> None:
        """An optimizer's step becomes a part of a CUDA graph."""
        self.uses_graphs = self.has_other_writers = True

    def begin_from_snapshot(self) -> None:
        """They were loaded; an optimizer had made that state."""
        self._versions, self.has_reports = self._state.sum_versions(), bool(self._state.optimizers)

    def end_step(self) -> bool:
        """A step is over; returns whether it is known what has changed them.

        Steps may do without an optimizer: gradients are accumulated, or a GradScaler leaves a step out.
        """
        before, self._versions = self._versions, self._state.sum_versions()
        is_accounted_for = self.is_in_step or self._versions == before
        self.has_other_writers |= bool(before) and not is_accounted_for
        self.is_in_step = False
        is_known = is_accounted_for and self.has_reports and not self.uses_graphs
        self.unknown_steps = 0 if is_known else self.unknown_steps + 1
        return is_known

    def has_unreported_change(self) -> bool:
        """Whether they have changed since the last step, and no optimizer has reported that."""
        # In this order, since an optimizer may report meanwhile.
        return self._state.sum_versions() != self._versions and not self.is_in_step
