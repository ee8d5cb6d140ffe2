"""Renderers: a linear program in, text of a target language out. One file a language; `base.py` says what each can."""
