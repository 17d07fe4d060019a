"""A worker of the GPU checks: FOLDER BACKEND cuda|cpu [shared].

DDP and AdamW until FOLDER/finish is there. It notes in FOLDER/notes when it got how far. FOLDER/do has a rank of a
round do something else: `{"round": 1, "rank": 2, "what": "sleep"}`.
"""

import ctypes
import json
import os
import sys
import time
from pathlib import Path

BEGAN = time.monotonic()
FOLDER, BACKEND, DEVICE = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
RANK, LOCAL_RANK = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
HERE = {
    "round": int(os.environ["HET_ROUND"]),
    "node": os.environ["HET_NODE_ID"],
    "rank": RANK,
    "pid": os.getpid(),
}
if "shared" in sys.argv:
    os.environ["NCCL_HOSTID"] = f"{HERE['node']}-{RANK}"

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402


def note(what: str, at: float | None = None, **more: object) -> None:
    """Say how far this worker has come (monotonic seconds, which all processes of a machine share)."""
    line = {**HERE, "what": what, "at": time.monotonic() if at is None else at, **more}
    with (FOLDER / "notes").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def sleep() -> None:
    """Do something else than the others."""
    time.sleep(3600)  # asleep


def kernel() -> None:
    """Wait for a kernel that runs for minutes; without a GPU, in C."""
    if DEVICE == "cuda":
        torch.cuda._sleep(1 << 40)
        torch.cuda.synchronize()  # in a kernel
    else:
        ctypes.CDLL(None).sleep(3600)  # in a kernel


def wait() -> None:
    """Until the device has done what it was asked."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    """Train."""
    note("script", BEGAN, visible=os.environ.get("CUDA_VISIBLE_DEVICES"))
    note("torch")
    device = torch.device(DEVICE)
    if DEVICE == "cuda":
        device = torch.device("cuda", LOCAL_RANK % torch.cuda.device_count())
        torch.cuda.set_device(device)
    ballast = torch.zeros(1, device=device)
    if DEVICE == "cuda":
        size = min(4 << 30, torch.cuda.get_device_properties(device).total_memory // 12)
        ballast = torch.empty(size, dtype=torch.uint8, device=device)  # shows if it is not freed
    wait()
    note("context")
    dist.init_process_group(BACKEND)
    flag = torch.ones(1, device=device)
    dist.all_reduce(flag)
    wait()
    note("collective")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256).to(device))
    optimizer = torch.optim.AdamW(model.parameters())
    step = 0
    while True:
        if (FOLDER / "do").exists():
            do = json.loads((FOLDER / "do").read_text(encoding="utf-8"))
            if (do["round"], do["rank"]) == (HERE["round"], RANK):
                {"sleep": sleep, "kernel": kernel}[do["what"]]()
        model(torch.randn(32, 256, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        flag.fill_(float(RANK == 0 and (FOLDER / "finish").exists()))
        dist.all_reduce(flag)
        ends = flag.item() > 0
        step += 1
        if step == 1:
            note("step")
        if ends:
            break
        time.sleep(0.02)
    del ballast
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
