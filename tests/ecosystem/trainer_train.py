"""Train a small Llama with Transformers' Trainer; its TrainingArguments find the ranks in torchrun's environment."""

import argparse
import json
import os
import time
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

EXAMPLES = 48


class Sentences(Dataset[dict[str, Tensor]]):
    """Sequences of tokens, with the sum of the indices that were asked for."""

    def __init__(self) -> None:
        self.tokens = torch.randint(0, 32, (EXAMPLES, 6), generator=torch.Generator().manual_seed(0))
        self.fetched = 0

    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        self.fetched += index
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


class Reporter(TrainerCallback):
    """Says after every epoch, once its checkpoint is written, which ranks and examples were in it."""

    def __init__(self, trainer: Trainer, data: Sentences, hold: Path | None) -> None:
        self.trainer, self.data, self.hold = trainer, data, hold

    def on_save(self, args: TrainingArguments, state: object, control: object, **_: object) -> None:
        # 1 + 2 + ... + W: every rank is there, once; and every example was with one of them
        accelerator = self.trainer.accelerator
        ranks = torch.tensor([args.process_index + 1, self.data.fetched], device=accelerator.device)
        sums = accelerator.reduce(ranks, reduction="sum")
        self.data.fetched = 0
        epoch = round(self.trainer.state.epoch or 0)
        say(rank=args.process_index, epoch=epoch, sum=int(sums[0]), indices=int(sums[1]))
        while epoch == 2 and self.hold and self.hold.exists():
            time.sleep(0.05)


def main() -> None:
    """Train what is left of --epochs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--save-dir", type=Path, required=True)
    parser.add_argument("--hold", type=Path, help="after epoch 2, wait while there is this file")
    options = parser.parse_args()

    args = TrainingArguments(
        output_dir=str(options.save_dir),
        num_train_epochs=options.epochs,
        per_device_train_batch_size=4,
        save_strategy="epoch",
        save_total_limit=2,
        report_to="none",
        disable_tqdm=True,
        ddp_find_unused_parameters=False,
        use_cpu=not torch.cuda.is_available(),
    )
    last = get_last_checkpoint(str(options.save_dir)) if options.save_dir.exists() else None
    say(
        rank=args.process_index,
        pid=os.getpid(),
        world_size=args.world_size,
        local_rank=args.local_process_index,
        node=int(os.environ["GROUP_RANK"]),
        local_world_size=int(os.environ["LOCAL_WORLD_SIZE"]),
        device=str(args.device),
        environment=args.distributed_state.distributed_type.value,
        done=round(json.loads(Path(last, "trainer_state.json").read_text())["epoch"]) if last else 0,
    )
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    data = Sentences()
    trainer = Trainer(model=LlamaForCausalLM(config), args=args, train_dataset=data)
    trainer.add_callback(Reporter(trainer, data, options.hold))
    trainer.train(resume_from_checkpoint=last)
    trainer.accelerator.end_training()


def say(**facts: object) -> None:
    """Print a line in one piece: several processes write to the same output."""
    print(json.dumps(facts) + "\n", end="", flush=True)


if __name__ == "__main__":
    main()
