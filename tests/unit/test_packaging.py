"""The package as it is installed: versions that fit each other, and one clear line where something is missing."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import stat
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import distribution, version
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement

from airflow_trident.cli.commands.doctor import changed_files
from airflow_trident.version import VERSION

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pins() -> list[Requirement]:
    lines = (ROOT / "requirements" / "dev.lock").read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.lstrip().startswith("#")]


# ---- versions --------------------------------------------------------------------------------------------------


def test_the_package_says_the_version_that_it_is_published_as() -> None:
    assert PROJECT["version"] == VERSION


def test_pyspark_and_pyspark_client_share_a_folder_and_are_of_one_version() -> None:
    assert version("pyspark") == version("pyspark-client")


def test_every_file_that_pyspark_and_pyspark_client_share_is_the_same_in_both() -> None:
    ours = {str(file): file.hash for file in distribution("pyspark").files or () if file.hash}
    theirs = {str(file): file.hash for file in distribution("pyspark-client").files or () if file.hash}
    shared = ours.keys() & theirs.keys()
    assert len(shared) > 100
    assert [name for name in sorted(shared) if ours[name].value != theirs[name].value] == []


def test_modules_that_another_distribution_has_overwritten_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, script = tmp_path / "worn" / "__init__.py", tmp_path / "bin" / "worn.py"
    info = tmp_path / "worn-1.0.dist-info"
    for folder in (module.parent, script.parent, info):
        folder.mkdir()
    (info / "METADATA").write_text("Name: worn\nVersion: 1.0\n")
    lines = []
    for file in (module, script):
        file.write_text("before = 1\n")
        digest = base64.urlsafe_b64encode(hashlib.sha256(file.read_bytes()).digest()).rstrip(b"=").decode()
        lines.append(f"{file.relative_to(tmp_path)},sha256={digest},11\n")
    (info / "RECORD").write_text("".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    script.write_text("#!/usr/bin/python3\n")  # as every installer does
    assert changed_files("worn") == 0
    module.write_text("after = 1\n")
    assert changed_files("worn") == 1


def test_pandas_is_one_that_this_spark_works_with() -> None:
    assert int(version("pandas").partition(".")[0]) < 3


def test_the_lock_satisfies_every_dependency_of_the_package() -> None:
    for text in PROJECT["dependencies"]:
        wanted = Requirement(text)
        found = [pin for pin in pins() if pin.name == wanted.name]
        assert found, text
        for pin in found:
            (exact,) = pin.specifier
            assert wanted.specifier.contains(exact.version), f"{text} and {pin}"


@pytest.mark.parametrize("python", ["3.11.0", "3.12.0", "3.13.0"])
def test_the_lock_pins_every_package_to_one_version_on_each_python(python: str) -> None:
    environment = {**default_environment(), "python_full_version": python, "python_version": python[:4]}
    names = [pin.name for pin in pins() if pin.marker is None or pin.marker.evaluate(environment)]
    assert len(names) == len(set(names))
    assert all(len(pin.specifier) == 1 and str(pin.specifier).startswith("==") for pin in pins())


def test_the_lock_names_no_host_and_no_folder() -> None:
    text = (ROOT / "requirements" / "dev.lock").read_text()
    assert re.findall(r"https?:|file:|--index-url|--find-links|/home/|/tmp/", text) == []


# ---- the wheel -------------------------------------------------------------------------------------------------


def build(tmp_path: Path, repository: str = "") -> zipfile.ZipFile:
    """:param repository: its public address, as it is filled in for a release."""
    source = tmp_path / "source"
    (source / "tools").mkdir(parents=True)
    for name in ("README.md", "LICENSE", "tools/published.py"):
        shutil.copy(ROOT / name, source / name)
    project = (ROOT / "pyproject.toml").read_text()
    assert project.count('\nrepository = ""\n') == 1
    (source / "pyproject.toml").write_text(project.replace('\nrepository = ""\n', f'\nrepository = "{repository}"\n'))
    shutil.copytree(ROOT / "airflow_trident", source / "airflow_trident")
    shutil.copytree(ROOT / "tests" / "unit", source / "tests")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path],
        cwd=source,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    return zipfile.ZipFile(wheel)


def published(wheel: zipfile.ZipFile) -> tuple[list[str], list[str]]:
    """Project URLs, and what links and pictures of the README lead to."""
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    text = wheel.read(name).decode()
    urls = re.findall(r"^Project-URL: (.*)$", text, re.MULTILINE)
    return urls, re.findall(r"\]\(([^)]*)\)", text)


def test_a_release_leads_to_its_repository_by_whole_addresses_of_files_that_are_there(tmp_path: Path) -> None:
    address = "https://git.example/owner/airflow-trident"
    urls, links = published(build(tmp_path, address))
    tag = f"v{PROJECT['version']}"
    assert [url.partition(", ")[0] for url in urls] == ["Source", "Documentation", "Changelog", "Issues"]
    files = [url.partition(", ")[2] for url in urls if "/blob/" in url] + links
    assert len(links) > 20
    for link in files:
        kind, _, path = link.removeprefix(f"{address}/").partition(f"/{tag}/")
        assert kind == ("raw" if path.endswith((".png", ".svg")) else "blob")
        assert (ROOT / path.partition("#")[0]).exists(), link


def test_without_an_address_no_link_leads_nowhere(tmp_path: Path) -> None:
    assert published(build(tmp_path)) == ([], [])


def test_the_wheel_holds_the_package_with_licence_and_entry_points_and_nothing_else(tmp_path: Path) -> None:
    wheel = build(tmp_path)
    names = wheel.namelist()
    info = f"airflow_trident-{PROJECT['version']}.dist-info"
    assert {name.partition("/")[0] for name in names} == {"airflow_trident", info}
    assert f"{info}/licenses/LICENSE" in names
    entry_points = wheel.read(f"{info}/entry_points.txt").decode()
    assert "[apache_airflow_provider]" in entry_points
    assert "[airflow.plugins]" in entry_points


# ---- what a machine without Python or Java is told -------------------------------------------------------------


@pytest.fixture
def bare_path(tmp_path: Path) -> Path:
    """A PATH with the POSIX tools of the script and neither Python nor Java nor uv."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in ("sh", "sed", "head", "tail", "cat", "grep", "dirname", "cksum", "rm", "mkdir", "sleep", "date", "tr"):
        (folder / tool).symlink_to(str(shutil.which(tool)))
    return folder


def program(folder: Path, name: str, script: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def bootstrap(verb: str, path: Path, **environment: str) -> tuple[int, str]:
    # in a copy of the script's folder, so that no real .venv is found or made
    project = path.parent / "project"
    shutil.copytree(ROOT / "tools", project / "tools", dirs_exist_ok=True)
    (project / "requirements").mkdir(exist_ok=True)
    shutil.copy(ROOT / "requirements" / "dev.lock", project / "requirements")
    shutil.copy(ROOT / "pyproject.toml", project)
    result = subprocess.run(
        [path / "sh", "tools/bootstrap.sh", verb],
        cwd=project,
        env={"PATH": str(path), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return result.returncode, result.stderr


def java(folder: Path, text: str) -> Path:
    return program(folder, "java", f"echo '{text}' >&2")


def test_a_machine_without_java_is_told_in_one_line_what_to_install(bare_path: Path) -> None:
    code, text = bootstrap("java", bare_path)
    assert code == 1
    assert text.startswith("error: Java 17 or newer is needed and there is none on PATH. ")
    assert all(word in text for word in ("apt install", "dnf install", "brew install"))
    assert text.count("\n") == 1


def test_a_java_that_is_too_old_is_named(bare_path: Path) -> None:
    old = java(bare_path, 'openjdk version "1.8.0_402"')
    code, text = bootstrap("java", bare_path)
    assert code == 1
    assert f"{old} is Java 8." in text


def test_a_java_that_does_not_run_is_named(bare_path: Path) -> None:
    stub = program(bare_path, "java", "echo 'Unable to locate a Java Runtime.' >&2; exit 1")
    code, text = bootstrap("java", bare_path)
    assert code == 1
    assert f"{stub} does not run." in text


def test_a_wrong_java_home_is_an_error_even_where_path_has_a_good_java(bare_path: Path) -> None:
    java(bare_path, 'openjdk version "17.0.15" 2025-04-15')
    code, text = bootstrap("java", bare_path, JAVA_HOME=str(bare_path))
    assert code == 1
    assert f"JAVA_HOME={bare_path} has no bin/java. Correct or unset it." in text


@pytest.mark.parametrize(
    "text", ['openjdk version "17.0.15" 2025-04-15', 'java version "21"', 'openjdk version "25-ea"']
)
def test_a_java_that_is_new_enough_is_taken_in_silence(bare_path: Path, text: str) -> None:
    java(bare_path, text)
    assert bootstrap("java", bare_path) == (0, "")


def test_a_machine_without_python_is_told_in_one_line_what_to_install(bare_path: Path) -> None:
    code, text = bootstrap("venv", bare_path)
    assert code == 1
    assert text.startswith("error: Python 3.11, 3.12 or 3.13 with venv is needed (found: none). ")
    assert all(word in text for word in ("apt install", "dnf install", "brew install"))
    assert text.count("\n") == 1


def test_a_python_that_is_too_old_and_a_shim_that_does_not_run_are_no_pythons(bare_path: Path) -> None:
    program(bare_path, "python3.12", "exit 127")
    old = program(bare_path, "python3", "echo 3.9.2; exit 1")
    code, text = bootstrap("venv", bare_path)
    assert code == 1
    assert f"(found: {old} is 3.9.2)" in text


def test_a_python_without_its_venv_module_is_named(bare_path: Path) -> None:
    crippled = program(bare_path, "python3", 'case "$2" in *ensurepip*) exit 1 ;; esac; echo 3.11.2')
    code, text = bootstrap("venv", bare_path)
    assert code == 1
    assert f"(found: {crippled} is 3.11.2 without venv)" in text


def test_a_python_that_the_user_names_and_that_does_not_exist_is_named(bare_path: Path) -> None:
    code, text = bootstrap("venv", bare_path, PYTHON="/nowhere/python3.12")
    assert code == 1
    assert "(found: PYTHON=/nowhere/python3.12 does not run)" in text


def test_a_failed_install_shows_why_and_how_to_go_on(bare_path: Path) -> None:
    makes_venv = 'if [ "$2" = venv ]; then cp "$0" .venv/bin/python; exit; fi'
    no_network = 'case "$*" in *pip*install*) echo "no network"; exit 1 ;; esac'
    program(bare_path, "python3", f"mkdir -p .venv/bin; {makes_venv}; {no_network}; echo 3.11.2")
    (bare_path / "cp").symlink_to(str(shutil.which("cp")))
    code, text = bootstrap("venv", bare_path)
    assert code == 1
    assert "no network" in text
    assert "error: installing packages failed" in text.splitlines()[-1]
    assert not os.path.exists(bare_path.parent / "project" / ".venv" / ".installed")
