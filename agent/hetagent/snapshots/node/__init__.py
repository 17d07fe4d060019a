"""Snapshots of the state of training in the memory of each node: where they are, what they may take, who serves them.

`hook.py` is the agent's part in each round, made by `setup.py`. `folder.py` owns the node's folder, `files.py` reads
and writes what is in it, `reporter.py` says what the server hears of it. Workers and `prefetch.py` of other nodes fetch
from `server.py`, which `handover.py` keeps up while this agent leaves. `disk.py` has `to_disk.py`, a process of its
own, write to the directory of all nodes; `catalog.py` reads what is there.
"""
