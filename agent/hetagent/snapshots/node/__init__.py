"""Snapshots of the state of training in the memory of each node: where they are, what they may take, who serves them.

`room.py` is the agent's part in each round; `folder.py` and `space.py` say where the files are, `exchange.py` what it
and the workers tell each other in them, `holdings.py` what a node has (pure); other nodes fetch it from `serving.py`.
"""
