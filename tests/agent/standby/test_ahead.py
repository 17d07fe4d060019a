"""What a script imports is imported ahead of its next start, and only if that makes no difference to it."""

import contextlib
from pathlib import Path

import pytest
from tests.support import standbys
from tests.support.cluster import wait_for

from hetagent.options.values import AUTO
from hetagent.standby import keeper
from hetagent.standby.keeper import StandbyPool
from hetagent.standby.process import IMPORT_AHEAD, Standby
from hetagent.worker.runner import BEFORE
from hetagent.workers.starter import WorkerProgram

INSTALLED = {
    "plain": "",
    "late": "",
    "flavoured": "import os; os.environ.get('FLAVOUR')",
    "coloured": "import os; os.environ['COLOUR'] = 'red'",
    "red": "import os; os.environ.get('COLOUR')",
}
"""Modules of installed packages, some of which read or set variables while they are imported."""

SAYS = "\nprint([name for name in ('plain', 'late', 'flavoured', 'coloured', 'red') if name in AT_START])"


class Script:
    """A script and what is installed beside it; its runs take notes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "s.py"
        self.site = folder / "site-packages"
        self.site.mkdir()
        for name, source in INSTALLED.items():
            (self.site / f"{name}.py").write_text(source)
        self.program = standbys.program(str(self.path), PYTHONPATH=str(self.site))

    def write(self, source: str) -> None:
        """Write it; at its end it says what was imported at its start."""
        self.path.write_text(f"import sys; AT_START = [*sys.modules]\n{source}{SAYS}")

    def round(self, local_rank: int = 0) -> WorkerProgram:
        notes = self.folder / f"notes{local_rank}"
        return standbys.in_round(self.program, **{BEFORE: f"{IMPORT_AHEAD}:{notes}"})

    def run(self, standby: Standby | None = None) -> str:
        """Run it in a round; what it says."""
        with standbys.outputs(self.folder) as streams:
            started = (
                standby.become_worker(self.round(), *streams)
                if standby
                else standbys.start(self.round(), *streams)
            )
            assert standbys.ended(started) == 0, (self.folder / "stderr").read_text()
        return (self.folder / "stdout").read_text().strip()

    @property
    def file(self) -> str:
        return str(self.folder / "notes0")

    def notes(self) -> list[str]:
        return Path(self.file).read_text().splitlines()


@pytest.fixture
def script(tmp_path: Path) -> Script:
    return Script(tmp_path)


def test_what_is_installed_is_imported(script: Script) -> None:
    (script.folder / "own.py").write_text("import sys; assert 'AT_START' in vars(sys.modules['__main__'])")
    script.write("import own, plain, json\ntry: import absent\nexcept ImportError: pass")
    assert script.run() == "[]"
    assert {"own", "plain", "absent"} <= set(script.notes())
    before = script.notes()
    assert script.run(standbys.ready(script.program, [], script.file)) == "['plain']"
    assert script.notes() == before


def test_a_module_that_reads_what_the_script_sets_first_is_left_out(script: Script) -> None:
    """A plain start would have set it before: `os.environ["KERAS_BACKEND"] = "torch"; import keras`."""
    script.write("import os, plain\nos.environ['FLAVOUR'] = 'mint'\nimport flavoured")
    script.run()
    standby = Standby(script.program, [], script.file)
    assert not standbys.receive(standby)
    standby.kill()
    why = "it reads what the script sets first, FLAVOUR while it is imported"
    assert standby.left_out == ("flavoured", why)


def test_a_variable_that_is_set_later_or_by_a_module_makes_no_difference(script: Script) -> None:
    script.write("import os, coloured, red, flavoured\nos.environ['FLAVOUR'] = 'mint'\nimport plain")
    script.run()
    assert {"=COLOUR", "=FLAVOUR"} <= set(script.notes())
    assert (
        script.run(standbys.ready(script.program, [], script.file))
        == "['plain', 'flavoured', 'coloured', 'red']"
    )


def test_a_module_from_a_folder_that_the_script_adds_is_not_imported_from_another(script: Script) -> None:
    (script.folder / "mine").mkdir()
    (script.folder / "mine" / "plain.py").write_text("")
    script.write(f"sys.path.insert(0, {str(script.folder / 'mine')!r})\nimport plain, late")
    script.run()
    assert script.run(standbys.ready(script.program, [], script.file)) == "['late']"


def test_notes_on_a_script_that_has_changed_are_of_no_use(script: Script) -> None:
    script.write("import plain")
    script.run()
    script.write("import late")
    assert script.run(standbys.ready(script.program, [], script.file)) == "[]"
    assert "plain" not in script.notes()
    assert script.run(standbys.ready(script.program, [], script.file)) == "['late']"


def test_a_script_whose_imports_fail_because_of_it_begins_anew(script: Script) -> None:
    """Nothing of it has run but imports, so it costs no restart."""
    (script.folder / "own.py").write_text(
        "import sys\nif 'plain' in sys.modules: raise ImportError('too late')"
    )
    script.write("import own\nimport plain")
    script.run()
    assert script.run(standbys.ready(script.program, [], script.file)) == "[]"
    [line] = (script.folder / "stderr").read_text().splitlines()
    assert line.startswith("hetagent: ImportError while the script imports, after --preload auto")


def test_each_rank_has_what_its_own_workers_import(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no standby is replaced for it, which for a while would leave none."""
    for name in ("QUIET_S", "SETTLED_S", "LOOK_S"):
        monkeypatch.setattr(keeper, name, 0.05)
    monkeypatch.setattr(keeper, "NEEDED_BYTES", 1)
    told: list[str] = []
    with contextlib.closing(StandbyPool(["decimal", AUTO], told.append)) as kept:

        def take(local_rank: int) -> tuple[int | None, str]:
            """Run a round of a rank; the pid of its standby, if there was one, and what the script said."""
            environ = {**standbys.in_round(script.program).environ, **kept.worker_env(local_rank)}
            program = WorkerProgram(script.program.args, environ)
            kept.on_wakeup()
            with standbys.outputs(script.folder) as streams:
                process = kept.claim_standby(local_rank, program, *streams)
                standby = process and process.pid
                assert standbys.ended(process or standbys.start(program, *streams)) == 0
            return standby, (script.folder / "stdout").read_text().strip()

        def two() -> dict[int, int]:
            def pids() -> dict[int, int] | None:
                kept.on_wakeup()
                return found if len(found := standbys.ready_pids(kept)) == 2 else None

            return wait_for(pids, "two standbys")

        script.write("import plain")
        kept.start_predicted([script.program, script.program])
        first = two()
        assert take(0) == (first[0], "[]")
        assert two()[1] == first[1]
        wait_for(lambda: take(0)[1] == "['plain']", "a standby that has imported what the script does")
        assert take(1) == (first[1], "[]")
    assert told == []
