"""The run loop, and the workers of a round."""
