"""hetagent: what runs on every node of a hetrdzv job."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hetrdzv import __version__ as __version__
else:

    def __getattr__(name: str) -> str:
        """The version, which is looked up when it is asked for: workers and torchrun import nothing else of ours."""
        if name != "__version__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from hetrdzv import __version__

        return __version__
