"""A live page of a federation: what happens in it, in a browser. `fl.Page`, `fl page` and `fl status`.

    the server's thread ──► History ──► Overview (JSON, once for all readers) ──► PageServer ──► browsers, fl status
    a file of rounds ────►

callback.py is `fl.Page`, file.py reads a file of fl.JsonLines, client.py reads a page for a terminal.
"""
