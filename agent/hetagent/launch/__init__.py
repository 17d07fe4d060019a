"""Launch styles: the ways in which a node's workers can be started.

To add one, write a module (or a folder) with a subclass of `base.Launch`, and add a row to `kinds.LAUNCHES`. If it
needs a flag of its own, that goes into options/flags.py, and its value into `base.Setup`.
"""
