"""The rules of the house, each a function from a module to what is wrong in it.

A rule reads syntax trees only: it needs nothing of the project to be importable, and it finds what
a test run would have to hit by luck. Each is proven on planted faults in test_rules.py.
"""

import ast
import re
from collections.abc import Callable, Iterator

from house.source import Source

Rule = Callable[[Source], Iterator[str]]

MODULE_LINES_MAX = 600
FUNCTION_LINES_MAX = 60
TEST_WORDS_MIN = 4

# What each folder may import of ours; the host, engine/, may import all of it.
ALLOWED = {
    "wheel": ("parkade.wheel",),
    "store": ("parkade.store",),
    "shard": ("parkade.shard", "parkade.wheel", "parkade.store.record"),
}
FOLDERS = {"engine", "shard", "store", "wheel"}
IMPURE_MODULES = {
    *("time", "datetime", "os", "io", "pathlib", "socket", "threading"),
    *("asyncio", "random", "subprocess", "logging", "uuid"),
}
PURE_FOLDERS = {"wheel", "shard"}
PURE_FILES = {"store/record.py", "store/frame.py"}
IMPURE_CALLS = {"open", "input", "print"}
CODE_MAKING_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve"}
VAGUE_WORDS = {
    *("manager", "managers", "util", "utils", "utility", "utilities"),
    *("common", "helper", "helpers", "data"),
}

CLOCK_FILE = "engine/clock.py"
CLOCK_CALLS = {"now", "utcnow", "today"}
CLOCK_OWNERS = {"datetime", "date", "dt"}

# Every one of these changes or reads a file; on a pipe or a process they have no twin here.
FILE_CALLS = {
    *("open", "write", "writev", "pwrite", "pwritev", "read", "readv", "pread", "preadv"),
    *("fsync", "fdatasync", "sync", "ftruncate", "truncate", "posix_fallocate", "sendfile"),
    *("rename", "replace", "renames", "unlink", "remove", "removedirs", "rmdir", "link", "symlink"),
    *(
        "mkdir",
        "makedirs",
        "listdir",
        "scandir",
        "walk",
        "stat",
        "lstat",
        "fstat",
        "utime",
        "chmod",
    ),
}
DISK_FILES = {"store/direct.py", "store/disk.py", "store/lock.py", "store/processes.py"}
# The only parts of the host that deal with people's files: a path given on the command line, a
# directory for a test.
FILE_FREE_FOLDERS = ("engine/cli/", "engine/testing/", "engine/web/")


def imported(source: Source) -> Iterator[tuple[ast.stmt, str]]:
    """Every name a module imports, in full: `from a import b` is `a.b`."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield from ((node, f"{base}.{alias.name}") for alias in node.names)


def is_within(name: str, packages: tuple[str, ...]) -> bool:
    """Whether a dotted name is one of the packages, or lies in one."""
    return any(name == package or name.startswith(package + ".") for package in packages)


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method, nested ones too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def imports_go_downwards(source: Source) -> Iterator[str]:
    """wheel and store know only themselves, shard the wheel and records too, none the host."""
    allowed = ALLOWED.get(source.folder)
    if allowed is None:
        return
    for node, name in imported(source):
        if is_within(name, ("parkade",)) and not is_within(name, allowed):
            yield source.at(node, f"{source.folder}/ may not import {name}")


def imports_are_absolute_and_by_the_right_name(source: Source) -> Iterator[str]:
    """`import shard` and `import parkade.shard` would be two modules with unequal classes."""
    for node, name in imported(source):
        if name.startswith("."):
            yield source.at(node, "relative import: write parkade.… in full")
        elif name.split(".", 1)[0] in FOLDERS:
            yield source.at(node, f"import of the folder {name}: write parkade.… in full")


def the_core_is_pure(source: Source) -> Iterator[str]:
    """No clock, file, thread or randomness below the host: all of it comes in as an argument."""
    if source.folder not in PURE_FOLDERS and source.path not in PURE_FILES:
        return
    for node, name in imported(source):
        if name.split(".", 1)[0] in IMPURE_MODULES:
            yield source.at(node, f"pure code imports {name}")
    for call, name in calls(source):
        if name in IMPURE_CALLS:
            yield source.at(call, f"pure code calls {name}()")


def nothing_stored_can_carry_code(source: Source) -> Iterator[str]:
    """Payloads are plain values: reading a directory must never run what somebody put there."""
    for node, name in imported(source):
        if name.split(".", 1)[0] in CODE_MAKING_MODULES:
            yield source.at(node, f"import of {name}")


def calls(source: Source) -> Iterator[tuple[ast.Call, str]]:
    """Every call, with the dotted name of what is called where that is plain to see."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call):
            yield node, dotted(node.func)


def dotted(node: ast.expr) -> str:
    """`a.b.c` of an expression that is only names; else what can be told of its end."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return ""


def hashes_are_the_same_in_every_process(source: Source) -> Iterator[str]:
    """The built-in hash() of a string differs from run to run; what is stored must not."""
    if source.folder not in FOLDERS:
        return
    for call, name in calls(source):
        if name == "hash" and not is_in_dunder_hash(source, call):
            yield source.at(call, "hash() differs from process to process: use zlib.crc32")


def is_in_dunder_hash(source: Source, call: ast.Call) -> bool:
    """Whether a call stands in a __hash__ method, where the value stays in this process."""
    return any(
        function.name == "__hash__" and call in set(ast.walk(function))
        for function in functions(source.tree)
    )


def only_the_clock_reads_time(source: Source) -> Iterator[str]:
    """Every other module is told the time, so that a test can tell it another."""
    if source.folder not in FOLDERS or source.path == CLOCK_FILE:
        return
    for node, name in imported(source):
        if name.split(".", 1)[0] == "time":
            yield source.at(node, f"import of {name}: ask the Clock")
    for call, name in calls(source):
        parts = name.split(".")
        if len(parts) > 1 and parts[-1] in CLOCK_CALLS and parts[-2] in CLOCK_OWNERS:
            yield source.at(call, f"{name}() reads the time: ask the Clock")


def only_the_disk_touches_files(source: Source) -> Iterator[str]:
    """One door to the disk: a test can cut the power at every call that goes through it."""
    if source.folder not in FOLDERS or source.path in DISK_FILES:
        return
    if source.path.startswith(FILE_FREE_FOLDERS):
        return
    if source.folder == "store" and any(is_within(name, ("lmdb",)) for _, name in imported(source)):
        return
    for node, name in imported(source):
        if is_within(name, ("shutil", "mmap")) or is_within(name, ("io.open",)):
            yield source.at(node, f"import of {name}: a file call belongs in Disk")
    for call, name in calls(source):
        owner, _, method = name.rpartition(".")
        if name == "open" or (owner == "os" and method in FILE_CALLS):
            yield source.at(call, f"{name}() touches a file: it belongs in Disk")


def modules_open_with_a_docstring(source: Source) -> Iterator[str]:
    """What a module is for, before a line of it is read."""
    if source.text.strip() and not ast.get_docstring(source.tree):
        yield f"{source.path}:1: no module docstring"


def modules_stay_small(source: Source) -> Iterator[str]:
    """A file that needs a map has become two."""
    lines = source.text.count("\n")
    if lines > MODULE_LINES_MAX:
        yield f"{source.path}:1: {lines} lines, at most {MODULE_LINES_MAX}"


def functions_stay_small(source: Source) -> Iterator[str]:
    """A function fits on a screen; its docstring and its decorators are not counted."""
    for function in functions(source.tree):
        lines = length(function)
        if lines > FUNCTION_LINES_MAX:
            what = f"{function.name} has {lines} lines, at most {FUNCTION_LINES_MAX}"
            yield source.at(function, what)


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The lines of a function from `def` to its end, less its docstring."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function, clean=False) is not None:
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


def names_say_what_they_are_for(source: Source) -> Iterator[str]:
    """A file or class that takes anything in ends up with everything in it."""
    parts = source.path.removesuffix(".py").split("/")
    for part in parts:
        if vague := VAGUE_WORDS.intersection(words(part)):
            yield f"{source.path}:1: {min(vague)!r} in the name of a file or folder"
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ClassDef) and (vague := VAGUE_WORDS.intersection(words(node.name))):
            yield source.at(node, f"{min(vague)!r} in the name of class {node.name}")


def words(name: str) -> set[str]:
    """The words of a snake_case or CamelCase name, in lower case."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)}


def inits_only_re_export(source: Source) -> Iterator[str]:
    """`__init__` is a door: imports, __all__, a lazy __getattr__, the guard of its name."""
    if source.name != "__init__":
        return
    for node in source.tree.body:
        if not is_re_export(node):
            yield source.at(node, "an __init__ re-exports and does nothing else")


def is_re_export(node: ast.stmt) -> bool:
    """Whether a statement may stand in an `__init__`."""
    match node:
        case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant()):
            return True
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return name.startswith("__")
        case ast.FunctionDef(name=name):
            return name in {"__getattr__", "__dir__"}
        case ast.If(test=ast.Compare(left=ast.Name(id="__name__")), body=[ast.Raise()], orelse=[]):
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING"), orelse=[]):
            return all(isinstance(inner, ast.Import | ast.ImportFrom) for inner in node.body)
        case _:
            return False


def tests_are_sentences(source: Source) -> Iterator[str]:
    """A failing test's name is the first line of the bug report."""
    if source.folder != "tests" or not source.name.startswith("test_"):
        return
    for function in functions(source.tree):
        if function.name.startswith("test_"):
            count = len([word for word in function.name.split("_")[1:] if word])
            if count < TEST_WORDS_MIN:
                yield source.at(function, f"{function.name}: say it in {TEST_WORDS_MIN} words")


def tests_do_not_sleep(source: Source) -> Iterator[str]:
    """A sleep is a guess at how long something takes: wait for the thing itself."""
    if source.folder != "tests":
        return
    for node, name in imported(source):
        if name == "time.sleep":
            yield source.at(node, "import of time.sleep: wait for a signal")
    for call, name in calls(source):
        if name == "time.sleep":
            yield source.at(call, "time.sleep(): wait for a signal")


RULES: tuple[Rule, ...] = (
    imports_go_downwards,
    imports_are_absolute_and_by_the_right_name,
    the_core_is_pure,
    nothing_stored_can_carry_code,
    hashes_are_the_same_in_every_process,
    only_the_clock_reads_time,
    only_the_disk_touches_files,
    modules_open_with_a_docstring,
    modules_stay_small,
    functions_stay_small,
    names_say_what_they_are_for,
    inits_only_re_export,
    tests_are_sentences,
    tests_do_not_sleep,
)
