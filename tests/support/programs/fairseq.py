"""Stands for `fairseq-train`: `python fairseq.py VERSION [options]`, where VERSION is `head` or `0.12.2`.

What it does with its environment and its GPUs is what fairseq does, in our words; the training is that of
examples/env_style, which follows `head`. It takes the entries of CUDA_VISIBLE_DEVICES for GPUs, and trains on CPUs.

Source: github.com/facebookresearch/fairseq, `infer_init_method` and `call_main` in fairseq/distributed/utils.py, and
`device_id` in fairseq/dataclass/configs.py. `head` is commit 3d262bb25690e4eb2e7d3c1309b1e9c406ca4b99, `0.12.2` is
4a388e64cd646ed7d7ad8de8fae55df2b8eea91d (its tag). Checked on 2026-11-22: the real `infer_init_method` of both made the
same of 132 cases, and both real programs ran under hetagent on nodes with 2 and 1 workers
(`fairseq-train DATA --task language_modeling --arch transformer_lm --cpu --distributed-backend gloo`, torch 2.13,
Python 3.11, with `torch.cuda.device_count` replaced and DDP's device_ids printed and dropped, as done here).
"""

import argparse
import os
import random
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples" / "env_style"))
import train

there = train.distributed_main


def visible() -> int:
    """How many GPUs this process sees."""
    return sum(1 for entry in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if entry)


def infer_init_method_0_12_2(args: argparse.Namespace) -> None:
    """The environment, then Slurm if there is a port, then this node; the GPU stays --device-id."""
    env = os.environ
    if all(name in env for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")):
        args.distributed_init_method = "env://"
        args.distributed_world_size, args.distributed_rank = int(env["WORLD_SIZE"]), int(env["RANK"])
        args.distributed_no_spawn = True
    elif args.distributed_port > 0:
        train.infer_from_slurm(args)
    elif args.distributed_world_size > 1:
        assert args.distributed_world_size <= args.visible
        args.distributed_init_method = f"tcp://localhost:{random.randint(10000, 60000)}"


def distributed_main(device_id: int, rank: int, args: argparse.Namespace) -> None:
    """Fails where CUDA would."""
    if device_id >= args.visible:
        raise RuntimeError(f"CUDA error: invalid device ordinal (GPU {device_id} of {args.visible})")
    there(device_id, rank, args)


VERSIONS = {"head": train.infer_init_method, "0.12.2": infer_init_method_0_12_2}

if __name__ in ("__main__", "__mp_main__"):  # a test imports the rules above
    torch.cuda.device_count = visible
    train.distributed_main = distributed_main

if __name__ == "__main__":
    train.infer_init_method = VERSIONS[sys.argv.pop(1)]
    train.main()
