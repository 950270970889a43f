"""Bytes and files: records, journals, and the store that parks tickets out of memory."""

if __name__ != "parkade.store":  # pragma: no cover
    raise ImportError("import parkade.store: the folder name is not the module name")
