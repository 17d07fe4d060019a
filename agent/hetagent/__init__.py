"""hetagent: what runs on every node of a hetrdzv job."""

from hetrdzv import __version__ as __version__
