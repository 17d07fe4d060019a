"""Agents for tests of standbys, as those of the run loop have them."""

from tests.agent.job.conftest import rig as rig
from tests.agent.job.conftest import server as server
