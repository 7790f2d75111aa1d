"""The import directions of the architecture: each stage knows only the stages before it."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import electrakit

PACKAGE = Path(electrakit.__file__).parent

# What results.json of `electra glue` holds, and the names of its tasks. They need no torch.
GLUE_RESULTS = {"finetune.results", "finetune.tasks"}
# Tables of the user, and how predictions are scored.
PROBED_TABLES = {"finetune.metrics", "finetune.read_glue", "finetune.tasks", "finetune.user_tables"}
# What measure.json of `electra measure` holds. It needs no torch.
MEASURES = "measure.results"
# A folder may import itself, and these; a dotted name is one module of another folder.
MAY_IMPORT = {
    "common": set(),
    "config": {"common"},
    "data": {"common", "config"},
    "model": {"common", "config"},
    "objective": {"common", "config", "model"},
    "runs": {"common", "config"},
    "train": {"common", "config", "data", "model", "objective", "runs"},
    "export": {"common", "config", "data", "model", "objective", "runs", "train", MEASURES, *GLUE_RESULTS},
    # Any transformers encoder, not only ours.
    "finetune": {"common", "config"},
    "tensorflow": {"common", "config", "data"},
    "deberta": {"common", "config", "data", "model"},
    "doctor": {"common", "config", "data", "runs"},
    # It reads files and needs no torch.
    "report": {"common", "config", "runs", "doctor", "model.counts", "finetune.published", MEASURES, *GLUE_RESULTS},
    "measure": {"common", "config", "data", "model", "runs", *PROBED_TABLES},
    "playground": {"common", "config", "data", "model", "objective", "runs", "measure.open"},
}


def imports_of(path: Path) -> set[str]:
    """Every module of the package that a file imports, those inside functions too, those for type checkers not."""
    found = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    tree.body = [
        node for node in tree.body if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
            found |= {
                f"{node.module}.{alias.name}"
                for alias in node.names
                if (PACKAGE.parent / (node.module or "").replace(".", "/") / f"{alias.name}.py").exists()
            }
    return {name for name in found if name.split(".")[0] == "electrakit"}


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path):
    folder = path.relative_to(PACKAGE).parts[0]
    if folder in ("__init__.py", "__main__.py", "cli"):  # the top: they may import everything
        return
    for imported in imports_of(path):
        name = imported.removeprefix("electrakit").removeprefix(".")
        allowed = {"", folder, *MAY_IMPORT[folder]}  # the package itself knows its version
        is_allowed = any(name == one or (one and name.startswith(f"{one}.")) for one in allowed)
        assert is_allowed, f"{path.relative_to(PACKAGE)} imports electrakit.{name}, which stands above it"


def test_modules_need_only_what_is_installed_with_the_package():
    """Packages of an extra, and those for development, are imported inside functions."""
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    installed = {re.split(r"[>=<\[]", name)[0].replace("-", "_") for name in project["dependencies"]}
    installed = {*installed, "yaml", "h11", "electrakit", *sys.stdlib_module_names}  # pyyaml; uvicorn installs h11
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert {name.split(".")[0] for name in names} <= installed, path.relative_to(PACKAGE)


def test_no_test_imports_another():
    """What several of them share is in tests/helpers."""
    tests = Path(__file__).parent
    for path in sorted(tests.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
                found = [name for name in names if name.split(".")[0] == "tests" and ".test_" in name]
                assert not found, f"{path.relative_to(tests)} imports {found[0]}"


def test_only_two_modules_stand_outside_the_folders():
    assert sorted(path.name for path in PACKAGE.glob("*.py")) == ["__init__.py", "__main__.py"]


def test_help_and_the_package_import_nothing_heavy():
    heavy = ["torch", "transformers", "numpy", "scipy", "sklearn", "matplotlib", "tokenizers", "pyarrow", "datasets"]
    code = f"import sys, electrakit, electrakit.cli.main; print([name for name in {heavy} if name in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


def test_every_public_name_is_there():
    for name in electrakit.__all__:
        assert getattr(electrakit, name).__doc__, name
    assert set(electrakit.__all__) <= set(dir(electrakit))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        electrakit.nothing  # noqa: B018  # the access is the test
