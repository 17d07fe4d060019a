"""A server, and agents under it, each in a group of its own."""

from tests.agent.job.conftest import rig, server

__all__ = ["rig", "server"]
