"""Why a job failed, on every node; and jobs whose workers ended well, each alone."""

import re
import sys
from pathlib import Path

import pytest

from tests.support.cluster import PAIR, Agent, Cluster, cluster

MET = "import torch.distributed as dist\n{}\ndist.barrier(); dist.destroy_process_group()\n"


def run(job: Cluster, script: str, *flags: str, **only: str) -> dict[str, Agent]:
    """Run a script on the nodes of `PAIR`, or another one on the node that `only` names, to the end."""
    for name, gpus in PAIR.items():
        path = job.folder / name / "script.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(only.get(name, script))
        job.agent(name, gpus, *flags, script=str(path))
    for agent in job.agents.values():
        agent.wait()
    return job.agents


def causes(agents: dict[str, Agent]) -> list[str]:
    """What the nodes say of the root cause."""
    return [agent.stderr.split("root cause: ")[1] for agent in agents.values()]


def test_the_words_of_a_worker_are_on_every_node(pair: Cluster) -> None:
    script = "import argparse; argparse.ArgumentParser().parse_args(['--lrr', '3'])"
    agents = run(pair, "import time; time.sleep(60)", b=script)
    for cause in causes(agents):
        said = "rank 2 on b exited with code 2: script.py: error: unrecognized arguments: --lrr 3"
        assert cause.startswith(f"{said}; no restart, since it would end the same way\n")
        assert "  | script.py: error: unrecognized arguments: --lrr 3\n" in cause
    assert {agent.wait() for agent in agents.values()} == {1}  # as torchrun
    assert (
        "script.py: error: unrecognized arguments: --lrr 3\n"
        in agents["b"].stderr.split("hetagent[b]: round 1: rank 2 on b exited")[0]
    )


def test_an_abort_tells_what_the_library_said(pair: Cluster) -> None:
    script = "import os; os.write(2, b\"terminate called: 'c10::Error'\\n  what():  lost\\n\"); os.abort()"
    for cause in causes(run(pair, "import time; time.sleep(60)", "--max-restarts", "0", b=script)):
        assert "killed by SIGABRT" in cause
        assert (
            "  | terminate called: 'c10::Error'\n  |   what():  lost\n  | Fatal Python error: Aborted\n"
            in cause
        )


@pytest.mark.long
@pytest.mark.parametrize("size", [4_000, 9_000_000])
def test_a_long_line_is_told_with_its_beginning(pair: Cluster, size: int) -> None:
    script = f"raise RuntimeError('Missing keys: ' + 'layer, ' * ({size} // 7) + 'last')"
    for cause in causes(run(pair, "import time; time.sleep(60)", "--max-restarts", "0", b=script)):
        assert cause.startswith("RuntimeError: Missing keys: layer, layer, ")
        assert "(script.py:1, rank 2 on b)\n" in cause
        assert 'script.py", line 1, in <module>\n' in cause
        assert "\n  | RuntimeError: Missing keys: layer, " in cause
        assert "layer, last\n=" in cause


def test_it_can_be_kept_on_the_node(pair: Cluster) -> None:
    script = "import sys; sys.stderr.write('private\\n'); sys.exit(3)"
    flags = ("--report-output", "off", "--max-restarts", "0")
    for cause in causes(run(pair, "import time; time.sleep(60)", *flags, b=script)):
        assert "exit code 3, round 1\n" in cause
        assert "  | " not in cause
    assert "private" not in pair.ask("GET").text + pair.ask("GET", "/events").text
    assert "private\n" in pair.agents["b"].stderr


@pytest.mark.parametrize("script", ["x = (\n", "import os\nimport no_such_module\n"])
def test_a_hopeless_script_is_not_restarted(pair: Cluster, script: str) -> None:
    agents = run(pair, script)
    for cause in causes(agents):
        line = cause.partition("\n")[0]
        assert re.search(
            r"Error: .* \(script\.py:\d, rank \d on [ab]\); no restart, since it would end the same", line
        )
    assert {agent.wait() for agent in agents.values()} == {1}
    group = pair.group()
    assert (group["state"], group["round"], group["restarts"]) == ("failed", 1, 0)


def test_one_node_that_lacks_a_module_is_named(pair: Cluster) -> None:
    agents = run(pair, "import time; time.sleep(60)", b="import no_such_module\n")
    for cause in causes(agents):
        said = "ModuleNotFoundError: No module named 'no_such_module' (script.py:1, rank 2 on b); no restart"
        assert cause.startswith(said)
    assert pair.group()["restarts"] == 0


def test_every_node_says_that_it_restarts_and_why(pair: Cluster) -> None:
    script = "import os, sys; sys.exit('boom' if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' else 0)"
    waits = "import os, time; time.sleep(60 if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' else 0)"
    agents = run(pair, waits, b=script)
    for name, agent in agents.items():
        assert agent.wait() == 0
        assert f"hetagent[{name}]: restarting (1 of 3)\n" in agent.stderr
        told = agent.stderr.partition(": restarting (1 of 3)\n")[0]
        assert told.count("SystemExit: boom (script.py:1, rank 2 on b)\n") == 1


def test_an_agent_that_may_open_few_files_says_so(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.touch()
    with cluster(tmp_path) as made:
        program = f"{sys.executable} -m hetagent.cli.main --standalone --gpus 1 --device cpu {script}"
        agent = made.run("a", ["sh", "-c", f"ulimit -n 40; exec {program}"])
        assert agent.wait() == 71
        assert "hetagent may have 40 files open, and needs 53 for 1 worker; raise it: " in agent.stderr


LINGERS = (
    "import threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()\n"
    "raise RuntimeError('bad batch')"
)


@pytest.mark.long
def test_a_worker_that_has_raised_and_does_not_end_is_the_cause(pair: Cluster) -> None:
    """A thread that is no daemon keeps its process alive; the others wait for it."""
    agents = run(pair, "import time; time.sleep(600)", "--max-restarts", "0", b=LINGERS)
    for cause in causes(agents):
        assert cause.startswith(
            "rank 2 on b raised RuntimeError: bad batch (script.py:3) and has not ended since\n"
        )
        assert "node b, rank 2 (local rank 0), has not ended, round 1\n" in cause
        assert "\n  | Traceback (most recent call last):\n" in cause
        assert "\n  | RuntimeError: bad batch\n" in cause
    assert {agent.wait() for agent in agents.values()} == {1}


@pytest.mark.long
def test_it_is_the_cause_of_what_fails_elsewhere_before_that_is_known(pair: Cluster) -> None:
    a = "import time; time.sleep(4); raise RuntimeError('timed out')"
    for cause in causes(run(pair, a, "--max-restarts", "0", b=LINGERS)):
        assert cause.startswith(
            "rank 2 on b raised RuntimeError: bad batch (script.py:3) and has not ended since\n"
        )


@pytest.mark.long
@pytest.mark.parametrize("leaves", ["0", "1", "2"])
def test_a_rank_that_had_left_is_named_beside_those_that_miss_it(pair: Cluster, leaves: str) -> None:
    """Rank 1 is on the node of a rank that fails, 0 is the master, 2 a node's only one."""
    script = (
        "import os, sys, time\n"
        f"if os.environ['RANK'] == {leaves!r}: sys.exit(0)\n"
        f"time.sleep(1.5 if os.environ['RANK'] == {'1' if leaves == '2' else '2'!r} else 3)\n"
        "raise RuntimeError('Connection closed by peer')"
    )
    node = "b" if leaves == "2" else "a"
    for cause in causes(run(pair, script, "--max-restarts", "0", b=script)):
        assert re.match(
            r"RuntimeError: Connection closed by peer \(script.py:4, rank \d on [ab]\); "
            rf"rank {leaves} on {node} had ended with exit code 0 before that\n",
            cause,
        ), cause
    assert f"rank {leaves} on {node} had ended" in pair.group()["reason"]["message"]


# -- workers that never met ----------------------------------------------------------------------------------------


def never_met(agents: dict[str, Agent]) -> set[str]:
    """What the nodes say about it."""
    lines = [
        line for agent in agents.values() for line in agent.stderr.splitlines() if line.startswith("outcome ")
    ]
    assert len(lines) == len(agents)
    return {line.removeprefix("outcome ").strip() for line in lines}


def test_workers_that_never_met(pair: Cluster) -> None:
    [said] = never_met(run(pair, "pass"))
    assert said.startswith(
        "the job succeeded, but ranks 0 to 2 never met: each may have trained alone, unless "
    )
    assert pair.group()["current_round"]["met"] == 0
    assert "never met" in pair.group()["reason"]["message"]
    assert pair.told("never_met")


def test_that_may_be_a_failure(pair: Cluster) -> None:
    agents = run(pair, "pass", "--require-rendezvous")
    assert never_met(agents) == {"failed"}
    assert all(cause.startswith("ranks 0 to 2 never met") for cause in causes(agents))
    assert {agent.wait() for agent in agents.values()} == {1}
    assert pair.group()["restarts"] == 0


@pytest.mark.gloo
@pytest.mark.long
def test_only_some_met(pair: Cluster) -> None:
    some = "import os\nif os.environ['RANK'] == '2': raise SystemExit\n"
    [said] = never_met(run(pair, some + MET.format("dist.init_process_group('gloo', world_size=2)")))
    assert said.startswith(
        "the job succeeded, but only 2 of 3 workers met: the others may have trained alone, unless "
    )


@pytest.mark.long
@pytest.mark.gloo
def test_workers_that_met_elsewhere_are_not_accused(pair: Cluster, tmp_path: Path) -> None:
    init = f"import os\ndist.init_process_group('gloo', init_method='file://{tmp_path}/meet', world_size=3, "
    [said] = never_met(run(pair, MET.format(init + "rank=int(os.environ['RANK']))")))
    assert said.endswith(" unless they meet in another way than init_process_group with env:// or hvd.init()")


def test_one_worker_cannot_be_alone(tmp_path: Path) -> None:
    with cluster(tmp_path, "--nnodes", "1") as made:
        (tmp_path / "a.py").write_text("pass")
        agent = made.agent("a", 1, "--require-rendezvous", script=str(tmp_path / "a.py"))
        assert agent.wait() == 0
        assert never_met({"a": agent}) == {"the job succeeded"}


# -- a program per node --------------------------------------------------------------------------------------------

PROGRAM = '''
import os, signal, socket, subprocess, sys, time
address, port, first = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "0"

def agent_watches(pid):
    """Whether the agent has a descriptor of a process."""
    folder = f"/proc/{os.environ['HET_AGENT_PID']}/fdinfo"
    for name in os.listdir(folder):
        try:
            if f"Pid:\\t{pid}\\n" in open(f"{folder}/{name}").read():
                return True
        except OSError:
            pass

if len(sys.argv) == 4:  # the program: starts a rank, and ends after it
    status = subprocess.run([sys.executable, *sys.argv, "rank"]).returncode
    if first and status:  # it has to stop its other ranks before that
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
        time.sleep(1)
    sys.exit(status and "the rank failed")
if not first:
    while True:
        try:
            peer = socket.create_connection((address, port))
            break
        except OSError:
            time.sleep(0.05)
    peer.recv(1)
    sys.exit("Connection closed by peer")
with socket.create_server((address, port)) as server:
    peer, _ = server.accept()
loader = subprocess.Popen(["sleep", "60"])
while not (agent_watches(loader.pid) and agent_watches(os.getpid())):
    time.sleep(0.05)
loader.kill()
os.waitid(os.P_PID, loader.pid, os.WEXITED | os.WNOWAIT)  # as torch's handler of SIGCHLD does
while agent_watches(loader.pid):
    time.sleep(0.05)
sys.exit("DataLoader worker is killed by signal: Killed")
'''


def test_the_first_process_to_die_counts_not_the_first_program_to_end(tmp_path: Path) -> None:
    with cluster(tmp_path, "--nnodes", "2", "--launch", "node", "--max-restarts", "0") as made:
        (tmp_path / "program.py").write_text(PROGRAM)
        for name in "ab":
            args = ["{master_addr}", "{master_port}", "{node_rank}"]
            made.agent(name, 1, script=str(tmp_path / "program.py"), args=args)
        for agent in made.agents.values():
            assert agent.wait() == 1
        for cause in causes(made.agents):
            assert cause.startswith("SystemExit: the rank failed (program.py:20, the program of a)\n"), (
                made.report()
            )
            assert "the rank failed" in cause
