"""Values of optional features: what crosses a wall for one of them only."""
