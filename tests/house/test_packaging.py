"""What is installed is what the folders hold: no module left out, nothing beside `parkade`."""

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from house.import_tree import ROOT, lay, package_folders
from house.source import files

LEFT_BEHIND = shutil.ignore_patterns(
    *(".git", ".venv*", "build", "dist", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis")
)


def installed_files() -> set[str]:
    """Every file of the product's folders, by the path it must have in site-packages."""
    return {
        "/".join([*package.split("."), file.name])
        for package, folder in package_folders().items()
        for file in folder.iterdir()
        if file.is_file() and file.suffix != ".pyc"
    }


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist of a clean copy of the checkout, and the wheel made from that sdist."""
    copy = tmp_path_factory.mktemp("build") / "checkout"
    shutil.copytree(ROOT, copy, ignore=LEFT_BEHIND)
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", "out"],
        cwd=copy,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (sdist,), (wheel,) = (copy / "out").glob("*.tar.gz"), (copy / "out").glob("*.whl")
    return sdist, wheel


def test_every_folder_with_modules_is_a_listed_package() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        listed = set(tomllib.load(file)["tool"]["setuptools"]["packages"])
    mapped = package_folders()
    tops = [folder for package, folder in mapped.items() if package.count(".") <= 1]
    found = {path.parent for top in tops for path in top.rglob("*.py")}
    assert found == set(mapped.values()), "add the folder to packages and package-dir"
    assert listed == set(mapped)


def test_the_import_tree_links_every_module_of_the_product(tmp_path: Path) -> None:
    links = lay(tmp_path)
    laid = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.py*")}
    laid |= {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("py.typed")}
    assert laid == {name for name in installed_files() if name.endswith((".py", "py.typed"))}
    assert len(laid) == links
    assert all(path.resolve().is_relative_to(ROOT) for path in tmp_path.rglob("*.py"))


def test_there_is_no_second_way_to_build_the_package() -> None:
    assert not (ROOT / "setup.py").exists()
    assert not (ROOT / "setup.cfg").exists()
    backend = 'build-backend = "setuptools.build_meta"'
    assert backend in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_installed_package_holds_exactly_what_the_folders_hold(
    built: tuple[Path, Path],
) -> None:
    names = zipfile.ZipFile(built[1]).namelist()
    tops = {name.split("/", 1)[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"parkade"}
    assert {name for name in names if name.startswith("parkade/")} == installed_files()


@pytest.mark.slow
def test_the_source_distribution_can_be_tested_where_it_lands(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[0]) as archive:
        members = {member.name.split("/", 1)[1] for member in archive if member.isfile()}
    ours = {file.relative_to(ROOT).as_posix() for file in files()}
    ours -= {".gitignore"}
    assert ours - members == set(), "add it to MANIFEST.in"


@pytest.mark.slow
def test_the_built_package_runs_without_the_checkout(
    built: tuple[Path, Path], tmp_path: Path
) -> None:
    with zipfile.ZipFile(built[1]) as archive:
        archive.extractall(tmp_path)
    program = "import parkade.shard, parkade.store, parkade.wheel; print(parkade.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(tmp_path)
