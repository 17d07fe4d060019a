"""Sentences: a value in, words out, for the people who read them. Nothing reads them back."""
