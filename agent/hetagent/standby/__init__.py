"""Workers' processes that are started before their round, so that a restart imports nothing.

`process.py` is one standby, `keeper.py` keeps one per local rank, `policy.py` says when there are any. What a standby
does itself is in `hetagent/worker/standby.py`. The agent knows all this as a `Room`.
"""
