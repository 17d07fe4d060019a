"""What `--help` shows, on one screen."""

from argparse import Action, ArgumentParser
from collections.abc import Sequence
from typing import Any

USAGE = "hetagent [flags] [script [its arguments]]"

ABOUT = "Start this node's workers for a job whose ranks a hetserver assigns."

FIRST_DAY = f"""\
usage: {USAGE}

{ABOUT}

On this machine only, with all its GPUs, or with two CPU workers:
  hetagent --standalone train.py
  hetagent --standalone --device cpu --gpus 2 train.py
The same on each of three nodes, once hetserver runs on head:
  hetagent --server http://head:29400 --token-file token --group bert \\
           --nnodes 3 train.py --lr 0.1

where:
  --server URL[,URL...]   the hetserver (or HET_SERVER)
  --token-file FILE       a file with its token (or HET_TOKEN)
  --standalone            a private server, for this machine only
  --check                 join nothing; check devices, server and network

this node:
  --gpus N|auto|LIST      how many GPUs, or which ones (default: all)
  --device auto|cuda|cpu  cpu: start N CPU workers
  -m                      the script is a module, as with python -m

the job:
  --group ID              its name, the same on all its nodes
  --nnodes N|MIN:MAX      how many nodes it waits for
  --max-restarts N        how many failures may restart it (default: 3)
  --hang-timeout-s S      end a round that hangs for so long (default: never)
  --snapshot-to DIR       write its snapshots to this shared directory

output:
  --log-dir DIR           keep the workers' log files here
  --tee 3                 show their lines with node and rank in front

All flags: hetagent --help-all. Those of torchrun apply, with - or _."""


class ShortHelp(Action):
    """`--help`: one screen, what people need on the first day."""

    def __init__(self, option_strings: Sequence[str], dest: str, **how: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, **how)

    def __call__(self, parser: ArgumentParser, *parsed: Any) -> None:
        print(FIRST_DAY)
        parser.exit()
