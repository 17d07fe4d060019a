"""Launch styles: the ways in which a node's workers can be started.

To add one, write a module (or a folder) with a subclass of `base.Launch`, and name it in `kinds.LAUNCHES`.
What was given of its flags is in `base.LaunchOptions`.
"""
