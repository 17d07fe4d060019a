"""Workers' processes that are started before their round, so that a restart imports nothing.

`keeper.py` keeps one per local rank, `process.py` is one of them, `imports.py` what workers have imported so far,
`memory.py` whether there is room for more. `waiting.py` runs in the standbys and the workers themselves.
"""
