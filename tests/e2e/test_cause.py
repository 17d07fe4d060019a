"""Why a job failed, on every node; and jobs whose workers ended well, each alone."""

import re
from pathlib import Path

import pytest

from tests.support.cluster import PAIR, Agent, Cluster, cluster


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


WAITS = "import time; time.sleep(600)"
NO_MODULE = "ModuleNotFoundError: No module named 'no_such_module'"
USAGE = "script.py: error: unrecognized arguments: --lrr 3"
LINGERS = (
    "import threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()\n"
    "raise RuntimeError('bad batch')"
)
LINGERS_CAUSE = r"RuntimeError: bad batch \(script.py:3, rank 2 on b, has not ended since\)\n"


@pytest.mark.parametrize(
    ("a", "b", "cause", "quoted"),
    [
        pytest.param(
            WAITS,
            "import argparse; argparse.ArgumentParser().parse_args(['--lrr', '3'])",
            f"rank 2 on b exited with code 2: {USAGE}; no restart, since it would end the same way\n",
            [f"  | {USAGE}\n"],
            id="wrong arguments",
        ),
        pytest.param(
            "x = (\n",
            "x = (\n",
            r"SyntaxError: .* \(script\.py:1, rank \d on [ab]\); no restart, since it would end the same",
            [],
            id="no Python, on all nodes",
        ),
        pytest.param(
            WAITS,
            "import no_such_module\n",
            rf"{NO_MODULE} \(script.py:1, rank 2 on b\); no restart",
            [],
            id="a module that one lacks",
        ),
        pytest.param(
            WAITS,
            "import os; os.write(2, b\"terminate called: 'c10::Error'\\n  what():  lost\\n\"); os.abort()",
            ".*killed by SIGABRT",
            ["  | terminate called: 'c10::Error'\n  |   what():  lost\n  | Fatal Python error: Aborted\n"],
            id="a library that aborts",
        ),
        pytest.param(
            WAITS,
            "raise RuntimeError('Missing keys: ' + 'layer, ' * 1_200_000 + 'last')",
            r"RuntimeError: Missing keys: layer, layer, .*\(script.py:1, rank 2 on b\)\n",
            [
                'script.py", line 1, in <module>\n',
                "\n  | RuntimeError: Missing keys: layer, ",
                "layer, last\n=",
            ],
            id="a huge line",
            marks=pytest.mark.long,
        ),
        pytest.param(  # a thread that is no daemon keeps its process alive; the others wait for it
            WAITS,
            LINGERS,
            LINGERS_CAUSE,
            ["node b, rank 2 (local rank 0), has not ended, round 1\n", "\n  | RuntimeError: bad batch\n"],
            id="one that raised and does not end",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "import time; time.sleep(4); raise RuntimeError('timed out')",
            LINGERS,
            LINGERS_CAUSE,
            [],
            id="what fails elsewhere before that is known",
            marks=pytest.mark.long,
        ),
    ],
)
def test_every_node_has_the_cause_and_the_words_of_the_worker(
    pair: Cluster, a: str, b: str, cause: str, quoted: list[str]
) -> None:
    budget = () if "no restart" in cause else ("--max-restarts", "0")
    agents = run(pair, a, *budget, b=b)
    for said in causes(agents):
        assert re.match(cause, said), said
        assert all(text in said for text in quoted), said
    assert {agent.wait() for agent in agents.values()} == {2 if "code 2" in cause else 1}
    group = pair.group()
    assert (group["state"], group["round"], group["restarts"]) == ("failed", 1, 0)


def test_every_node_says_that_it_restarts_and_why(pair: Cluster) -> None:
    script = "import os, sys; sys.exit('boom' if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' else 0)"
    waits = "import os, time; time.sleep(60 if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' else 0)"
    agents = run(pair, waits, b=script)
    for name, agent in agents.items():
        assert agent.wait() == 0
        assert f"hetagent[{name}]: restarting (1 of 3)\n" in agent.stderr
        told = agent.stderr.partition(": restarting (1 of 3)\n")[0]
        assert told.count("SystemExit: boom (script.py:1, rank 2 on b)\n") == 1


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

ALONE = "import os\nif os.environ['RANK'] == '2': raise SystemExit\n"
MEET = """
import os, torch.distributed as dist
dist.init_process_group('gloo', HOW)
dist.barrier(); dist.destroy_process_group()
"""
ELSEWHERE = "init_method='file://FOLDER/meet', world_size=3, rank=int(os.environ['RANK'])"
NEVER = "only 0 of 3 workers connected"


@pytest.mark.parametrize(
    ("script", "outcome"),
    [
        ("pass", f"the job succeeded, but {NEVER}: the others may have trained alone, unless "),
        pytest.param(
            ALONE + MEET.replace("HOW", "world_size=2"),
            "the job succeeded, but only 2 of 3 workers connected: the others may have trained alone, unless ",
            marks=[pytest.mark.gloo, pytest.mark.long],
            id="some",
        ),
        pytest.param(
            MEET.replace("HOW", ELSEWHERE),
            ".* unless they connect in another way than init_process_group with env://",
            marks=[pytest.mark.gloo, pytest.mark.long],
            id="elsewhere",
        ),
    ],
)
def test_workers_that_never_met_are_named(pair: Cluster, script: str, outcome: str) -> None:
    for agent in run(pair, script.replace("FOLDER", str(pair.folder))).values():
        assert re.search(rf"^outcome +{outcome}", agent.stderr, re.MULTILINE), agent.stderr
    assert "connected" in pair.group()["reason"]["message"]
    assert pair.told("partially_connected")


def test_that_they_never_met_may_be_a_failure(pair: Cluster) -> None:
    agents = run(pair, "pass", "--require-rendezvous")
    assert all(cause.startswith(NEVER) for cause in causes(agents))
    assert {agent.wait() for agent in agents.values()} == {1}
    assert pair.group()["restarts"] == 0
    (alone := pair.folder / "alone.py").touch()  # one worker cannot be alone
    alone_flags = ("--group", "alone", "--nnodes", "1", "--require-rendezvous")
    assert pair.agent("c", 1, *alone_flags, script=str(alone)).wait() == 0


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
    time.sleep(0.3)  # agents see deaths in their order, but not those of a few milliseconds
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
