"""What `import parkade` costs and brings, seen from a process of its own."""

import subprocess
import sys

from house.import_tree import ROOT, package_folders

# Each serves one corner of the product: who does not go there does not pay for it.
CORNERS = {
    *("click", "cronsim", "starlette", "uvicorn", "jinja2", "rich", "textual"),
    *("prometheus_client", "opentelemetry", "pytest", "hypothesis"),
    *("parkade.cli", "parkade.web", "parkade.testing", "parkade.workflow"),
}


def modules_after(code: str) -> set[str]:
    """The names in sys.modules after some code ran in a new interpreter, outside the checkout."""
    program = f"{code}\nimport sys\nprint(*sys.modules, sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT.anchor
    )
    return set(done.stdout.split())


def test_importing_the_package_brings_no_corner_of_it() -> None:
    assert modules_after("import parkade") & CORNERS == set()


def test_the_package_imports_under_its_own_name_only() -> None:
    modules = modules_after("import parkade, parkade.shard, parkade.store, parkade.wheel")
    assert {"parkade.shard", "parkade.store", "parkade.wheel"} <= modules
    assert not modules & {"engine", "shard", "store", "wheel"}


def test_a_folder_refuses_to_be_imported_by_its_own_name() -> None:
    lower = [f.name for p, f in package_folders().items() if p.count(".") == 1 and f.parent == ROOT]
    assert sorted(lower) == ["shard", "store", "wheel"]
    for folder in lower:
        done = subprocess.run(
            [sys.executable, "-c", f"import {folder}"], capture_output=True, text=True, cwd=ROOT
        )
        assert f"import parkade.{folder}" in done.stderr
