"""The pure core: what may happen to a ticket."""

if __name__ != "parkade.shard":  # pragma: no cover
    raise ImportError("import parkade.shard: the folder name is not the module name")
