"""Reasons: one function per code makes the code and the message that people read; one module per subject."""
