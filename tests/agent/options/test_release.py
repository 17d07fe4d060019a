"""Which torch is accepted: an old one is refused, an unknown newer one is only warned about."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.support.servers import ROOT

from hetagent.errors import UsageError
from hetagent.node import release

OLD, NEW = (
    r"^torch .* is too old: hetagent needs torch 2\.6 or newer; upgrade",
    "is newer than what this hetagent",
)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        *(
            (found, None)
            for found in ("2.6.0", "2.9.0a0+50eac811", "2.13.0+cpu", "2.15.1", "2.15.0.dev2", None, "git")
        ),
        *((found, NEW) for found in ("2.16.0", "2.17.0a0+git", "3.0.0")),
        *((found, OLD) for found in ("2.5.1+cu124", "1.13.1")),
        (release.find_torch_release() or "none", None),
    ],
)
def test_which_is_accepted(found: str | None, said: str | None) -> None:
    if said == OLD:
        with pytest.raises(UsageError, match=OLD):
            release.check_torch_release(found)
    else:
        assert (release.check_torch_release(found) or "") == (
            f"torch {found} {NEW} was tested with (2.15)" if said else ""
        )


def test_pip_accepts_the_same() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    oldest = ".".join(map(str, release.OLDEST))
    assert f"torch>={oldest},<3" in extras["agent"]


def test_an_old_one_is_refused_before_it_is_imported(tmp_path: Path) -> None:
    (tmp_path / "torch-2.5.1.dist-info").mkdir()
    (tmp_path / "torch-2.5.1.dist-info" / "METADATA").write_text("Name: torch\nVersion: 2.5.1\n")
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise AssertionError('imported')")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nfrom hetagent.cli.main import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", program, "--standalone", __file__], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith("hetagent: torch 2.5.1 is too old: hetagent needs torch 2.6 or newer")
