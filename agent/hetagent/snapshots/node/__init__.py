"""Snapshots of the state of training in the memory of each node: where they are, what they may take, who serves them.

`hook.py` is the agent's part in each round, made by `setup.py`. `folder.py` says where the files are, `directory.py`
what the agent and the workers tell each other in them, `inventory.py` what a node has, `reporter.py` what of it the
server hears. Workers and `prefetch.py` of other nodes fetch from `server.py`, which `handover.py` keeps up while this
agent leaves. `disk.py` has `to_disk.py`, a process of its own, write to the directory of all nodes; `catalog.py` reads
what is there.
"""
