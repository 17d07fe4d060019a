"""The main job, told step by step: three uneven nodes train together, lose a worker, and go on.

Everything here is what a person would type, run on one machine: a hetserver, three hetagents with 2, 1 and 1 CPU
workers, and hetctl. Exits with 1 unless the job succeeds with the accuracy that it should reach.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import psutil

NODES = {"big": 2, "small-1": 1, "small-2": 1}
GROUP = "digits"
EPOCHS = 14
ACCURACY = 0.95
HERE = Path(__file__).parent
BIN = Path(sys.executable).parent


LAST_LINES = 20
"""How much is shown of what each program has said, if the demo fails."""


def say(text: str = "") -> None:
    """Print one line of the story."""
    print(text, flush=True)


def shown(command: list[str]) -> str:
    """A command as a person would type it."""
    return " ".join(os.path.relpath(word) if word.startswith("/") else word for word in command)


def wait_for(what: str, found: Callable[[], object], timeout_s: float = 120.0) -> object:
    """Wait until something is found.

    Raises:
        SystemExit: it was not, within `timeout_s` seconds.
    """
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        if result := found():
            return result
        time.sleep(0.02)
    busy = f"load {os.getloadavg()[0]:.0f} on {os.cpu_count()} CPUs"
    sys.exit(
        f"demo: {what} did not happen within {timeout_s:g} s ({busy}); see above what everybody said last"
    )


@contextlib.contextmanager
def running(name: str, command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program in the background with its output in a file; ended with the block."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()


def hetctl(server: str, *words: str) -> str:
    """What hetctl prints."""
    command = [str(BIN / "hetctl"), "--server", server, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.rstrip()


def second_round_at(server: str) -> datetime:
    """When the second round formed, by the server's history."""
    events = json.loads(hetctl(server, "--json", "events", GROUP))["events"]
    return datetime.fromisoformat([e["at"] for e in events if e["reason"]["code"] == "round_formed"][1])


def lost_steps(server: str) -> int:
    """How many steps the second round makes again, by the server's history."""
    events = json.loads(hetctl(server, "--json", "events", GROUP))["events"]
    return int(
        next(e["reason"]["data"]["lost"] for e in events if e["reason"]["code"] == "began_from_snapshot")
    )


def first_rank_of(server: str, name: str) -> int:
    """The global rank of a node's first worker."""
    members = json.loads(hetctl(server, "--json", "get", GROUP))["current_round"]["members"]
    return int(next(member["rank_offset"] for member in members if member["node_id"] == name))


def worker_of(agent: subprocess.Popen[bytes]) -> psutil.Process | None:
    """A worker process of an agent: a descendant that carries the agent's mark."""
    for process in psutil.Process(agent.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "HET_INCARNATION" in process.environ():
                return process
    return None


def training_lines(log: Path) -> list[str]:
    """What rank 0's script said."""
    pattern = r"^(world size|epoch|final accuracy)\b.*"
    return [m.group(0) for m in re.finditer(pattern, log.read_text(errors="replace"), re.MULTILINE)]


def main() -> None:
    """Tell the story."""
    with tempfile.TemporaryDirectory(prefix="hetrdzv-demo-") as folder, contextlib.ExitStack() as stack:
        try:
            story(Path(folder), stack)
        except SystemExit:
            for log in sorted(Path(folder).glob("*.log")):
                last = log.read_text(errors="replace").splitlines()[-LAST_LINES:]
                say("\n".join([f"--- {log.stem}", *last]))
            raise


def story(folder: Path, stack: contextlib.ExitStack) -> None:
    """Run the demo in a folder; background programs end with the stack."""
    say("1. A server decides who trains with whom. It needs no GPU and no torch.")
    server_log = folder / "server.log"
    command = [str(BIN / "hetserver"), "--port", "0", "--store", f"sqlite:{folder / 'state.db'}"]
    say("   $ hetserver")
    stack.enter_context(running("hetserver", command, server_log))
    found = wait_for("the server's start", lambda: re.search(r"http://[\d.:]+", server_log.read_text()))
    assert isinstance(found, re.Match)
    server = found.group(0)
    say(f"   listening on {server}")

    say(
        "2. Three nodes of different sizes: 2, 1 and 1 CPU workers. The same command on each; nobody types a rank."
    )
    agents: dict[str, subprocess.Popen[bytes]] = {}
    script = [
        str(HERE / "train.py"),
        "--epochs",
        str(EPOCHS),
        "--checkpoint-dir",
        str(folder / "checkpoints"),
    ]
    for name, gpus in NODES.items():
        own = ["--gpus", str(gpus), "--device", "cpu", "--server", server, "--group", GROUP, "--nnodes", "3"]
        command = [str(BIN / "hetagent"), *own, "--node-id", name, *script, "--step-sleep", "0.02"]
        say(f"   {name + '$':9}hetagent --gpus {gpus} --device cpu --server {server} --nnodes 3 train.py")
        agents[name] = stack.enter_context(running(name, command, folder / f"{name}.log"))

    say("3. The server gives every node its rank offset; the agents start their workers.")
    log = folder / "big.log"
    wait_for("the first epoch", lambda: any(line.startswith("epoch") for line in training_lines(log)))
    say("   $ hetctl get digits")
    say(re.sub(r"^", "   ", hetctl(server, "get", GROUP), flags=re.MULTILINE))

    say("4. Training. Then a worker is killed, as the kernel does when memory runs out.")
    wait_for("epoch 4", lambda: sum(line.startswith("epoch") for line in training_lines(log)) >= 4)
    for line in training_lines(log):
        say(f"   big: {line}")
    before = len(training_lines(log))
    victim = worker_of(agents["small-2"])
    assert victim is not None
    say(f"   small-2$ kill -9 {victim.pid}      # rank {first_rank_of(server, 'small-2')}")
    killed_at, killed_wall = time.monotonic(), datetime.now(UTC)
    os.kill(victim.pid, signal.SIGKILL)

    wait_for("the restart", lambda: any("world size" in line for line in training_lines(log)[before:]))
    took_s = time.monotonic() - killed_at
    formed_s = (second_round_at(server) - killed_wall).total_seconds()
    say(f"5. Every node was told at once: the next round formed {formed_s:.2f} s after the kill. The workers")
    say(
        f"   went on after {took_s:.1f} s, with all imports made. Steps lost: {lost_steps(server)}, since those"
    )
    say("   that lived saved the last one in memory; the checkpoint of the last epoch was not needed:")
    statuses = {name: agent.wait(120) for name, agent in agents.items()}
    lines = training_lines(log)
    again = next(line for line in lines[before:] if line.startswith("world size"))
    for line in (again, "...", *lines[-2:]):
        say(f"   big: {line}")

    say("6. The history, as the server keeps it:   $ hetctl events digits")
    say(re.sub(r"^", "   ", hetctl(server, "events", GROUP), flags=re.MULTILINE))
    accuracy = float(lines[-1].split()[2])
    ended_well = set(statuses.values()) == {0} and accuracy >= ACCURACY
    say(f"   exit statuses: {', '.join(f'{name} {status}' for name, status in statuses.items())}")
    say(
        f"{'Done' if ended_well else 'FAILED'}: accuracy {accuracy:.3f} "
        f"(at least {ACCURACY} wanted), one restart, 4 ranks."
    )
    if not ended_well:
        sys.exit(1)


if __name__ == "__main__":
    main()
