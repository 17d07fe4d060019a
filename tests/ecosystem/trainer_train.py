"""Train a small Llama with Transformers' Trainer; its TrainingArguments find the ranks in torchrun's environment."""

import json
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset
from training import EXAMPLES, end_epoch, options, own, say_who
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint


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
        accelerator = self.trainer.accelerator
        ranks = own(args.process_index, self.data.fetched).to(accelerator.device)
        sums = accelerator.reduce(ranks, reduction="sum")
        self.data.fetched = 0
        end_epoch(args.process_index, round(self.trainer.state.epoch or 0), sums, self.hold)


def main() -> None:
    """Train what is left of --epochs."""
    told = options()
    args = TrainingArguments(
        output_dir=str(told.save_dir),
        num_train_epochs=told.epochs,
        per_device_train_batch_size=4,
        save_strategy="epoch",
        save_total_limit=2,
        report_to="none",
        disable_tqdm=True,
        ddp_find_unused_parameters=False,
        use_cpu=not torch.cuda.is_available(),
    )
    last = get_last_checkpoint(str(told.save_dir)) if told.save_dir.exists() else None
    done = round(json.loads(Path(last, "trainer_state.json").read_text())["epoch"]) if last else 0
    ranks = (args.process_index, args.world_size, args.local_process_index)
    say_who(*ranks, args.device, args.distributed_state.distributed_type.value, done)
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    data = Sentences()
    trainer = Trainer(model=LlamaForCausalLM(config), args=args, train_dataset=data)
    trainer.add_callback(Reporter(trainer, data, told.hold))
    trainer.train(resume_from_checkpoint=last)
    trainer.accelerator.end_training()


if __name__ == "__main__":
    main()
