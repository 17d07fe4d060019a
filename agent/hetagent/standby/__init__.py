"""Workers' processes that are started before their round, so that a restart imports nothing.

`keeper.py` keeps one per local rank, `process.py` is one of them; `import_ahead.py` runs in them and in workers.
"""
