"""A worker of the GPU checks: FOLDER cuda|cpu [shared].

DDP and AdamW until FOLDER/finish is there. It notes in FOLDER/notes when it has made its first step. FOLDER/do has a
rank of a round do something else: `{"round": 1, "rank": 2, "what": "sleep"}`.
"""

import ctypes
import json
import os
import sys
import time
from pathlib import Path

FOLDER, DEVICE = Path(sys.argv[1]), sys.argv[2]
RANK, ROUND = int(os.environ["RANK"]), int(os.environ["HET_ROUND"])
if "shared" in sys.argv:
    os.environ["NCCL_HOSTID"] = f"host-{RANK}"

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402


def sleep() -> None:
    """Do something else than the others."""
    time.sleep(3600)  # in sleep


def kernel() -> None:
    """Wait for a kernel that runs for minutes; without a GPU, in C."""
    if DEVICE == "cuda":
        torch.cuda._sleep(1 << 40)
        torch.cuda.synchronize()  # in kernel
    else:
        ctypes.CDLL(None).sleep(3600)  # in kernel


def main() -> None:
    """Train."""
    device = torch.device(DEVICE)
    if DEVICE == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
        size = min(4 << 30, torch.cuda.get_device_properties(device).total_memory // 12)
        ballast = torch.empty(size, dtype=torch.uint8, device=device)  # noqa: F841 - shows if it is not freed
    dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256).to(device))
    optimizer = torch.optim.AdamW(model.parameters())
    finish, step = torch.zeros(1, device=device), 0
    while finish.item() == 0:
        if (FOLDER / "do").exists():
            do = json.loads((FOLDER / "do").read_text(encoding="utf-8"))
            if (do["round"], do["rank"]) == (ROUND, RANK):
                {"sleep": sleep, "kernel": kernel}[do["what"]]()
        model(torch.randn(32, 256, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        finish.fill_(float(RANK == 0 and (FOLDER / "finish").exists()))
        dist.all_reduce(finish)
        finish.item()
        step += 1
        if step == 1:
            note = {"round": ROUND, "rank": RANK, "pid": os.getpid(), "at": time.monotonic()}
            with (FOLDER / "notes").open("a", encoding="utf-8") as file:
                file.write(json.dumps(note) + "\n")
        time.sleep(0.02)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
