"""When: a timer wheel that owns no clock."""

if __name__ != "parkade.wheel":  # pragma: no cover
    raise ImportError("import parkade.wheel: the folder name is not the module name")
