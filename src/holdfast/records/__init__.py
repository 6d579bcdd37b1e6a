"""The nouns that everything else is made of. Read this package first.

Knows how they are encoded and validated. Never does any I/O beyond reading a task file.
"""
