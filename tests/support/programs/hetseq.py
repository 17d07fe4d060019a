"""Stands for HetSeq's `train.py`, with its options and what it does to its checkpoints, in our words.

The training is that of examples/hetseq_style. Source: github.com/yifding/hetseq at commit
afdb4b0502e5223ae03ce7e9eae36b0925797d0e. `save_state` in hetseq/checkpoint_utils.py saves an empty `extra_state`,
whatever it was given; `load_checkpoint` there looks for --restore-file in --save-dir if it has its default name, and
as a path otherwise; `Controller.load_checkpoint` in hetseq/controller.py reads the epoch in its "train_iterator".

Checked on 2026-11-22 with the real program (--task mnist on made-up images, --cpu --distributed-backend gloo, torch
2.13 with TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1, `torch.cuda.device_count` and `torch.cuda.DoubleTensor` replaced): with
hetagent on nodes with 2 and 1 workers, a killed process, and both values of --restore-file.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples" / "hetseq_style"))
import train

their_parse_args, their_train = train.parse_args, train.train


def parse_args() -> argparse.Namespace:
    """The example's options and --restore-file."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--restore-file", type=Path, default=Path("checkpoint_last.pt"))
    mine, sys.argv[1:] = parser.parse_known_args()
    args = their_parse_args()
    args.restore_file = mine.restore_file
    return args


def restore(device_id: int, rank: int, args: argparse.Namespace) -> None:
    """Restore what there is to restore, then train from the beginning, and save as HetSeq does."""
    default = args.restore_file.name in ("checkpoint_last.pt", "checkpoint_best.pt")
    path = args.save_dir / args.restore_file if default else args.restore_file
    if path.exists():
        state = torch.load(path, weights_only=True)
        state["extra_state"]["train_iterator"]["epoch"]
    saved = args.save_dir / "checkpoint_last.pt"
    train.save = lambda path, model, *_: write(saved, model)
    args.save_dir = args.save_dir / "nothing"
    their_train(device_id, rank, args)


def write(path: Path, model: Any) -> None:
    """Save the model, and an empty `extra_state`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"model": model.state_dict(), "extra_state": {}}, path)


train.parse_args, train.train = parse_args, restore

if __name__ == "__main__":
    train.main()
