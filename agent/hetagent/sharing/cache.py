"""Keeps what was measured in the user's cache folder: one small file for each set of devices, versions and limits.

A file that is missing, damaged, of another key or not readable counts as nothing kept. Files are replaced as a whole,
so agents that share a folder never see half of one.
"""

import contextlib
import hashlib
import json
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

FOLDER = Path("hetrdzv") / "speeds"


def folder(environ: Mapping[str, str]) -> Path:
    """`$XDG_CACHE_HOME/hetrdzv/speeds`, or the same in `~/.cache`.

    Raises:
        RuntimeError: this user has no home.
    """
    given = Path(environ.get("XDG_CACHE_HOME", ""))
    return (given if given.is_absolute() else Path.home() / ".cache") / FOLDER


def read(place: Path, key: Mapping[str, object], slots: int) -> list[float] | None:
    """The speeds that are kept for a key; None: none are.

    Args:
        place: the folder.
        key: everything that they depend on, as JSON has it.
    """
    try:
        kept = json.loads(_file(place, key).read_bytes())
        speeds = [float(speed) for speed in kept["speeds"]]
        fits = kept["key"] == json.loads(json.dumps(key)) and len(speeds) == slots
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    return speeds if fits and all(math.isfinite(speed) and speed > 0 for speed in speeds) else None


def write(place: Path, key: Mapping[str, object], speeds: Sequence[float]) -> None:
    """Keep speeds.

    Raises:
        OSError: they cannot be kept.
    """
    place.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=".", suffix=".new", dir=place)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump({"key": key, "speeds": list(speeds)}, file, indent=1)
        os.replace(name, _file(place, key))
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _file(place: Path, key: Mapping[str, object]) -> Path:
    text = json.dumps(key, sort_keys=True)
    return place / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"
