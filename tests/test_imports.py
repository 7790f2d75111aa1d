"""The import directions of the architecture: each stage knows only the stages before it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import electrakit

PACKAGE = Path(electrakit.__file__).parent
BASE = {
    "electrakit",
    "electrakit.config",
    "electrakit.errors",
    "electrakit.engine",
    "electrakit.engines",
    "electrakit.hashes",
    "electrakit.loading",
    "electrakit.locks",
    "electrakit.progress",
    "electrakit.whole",
}
SETTINGS = {"electrakit.errors", "electrakit.network_config", "electrakit.pretrain_config"}

# A module (by its longest prefix here) may import these and what stands below them, and nothing else of the package.
MAY_IMPORT = {
    "electrakit": set(),  # it names modules as strings, and imports them when they are used
    "electrakit.errors": set(),
    "electrakit.config": {"electrakit.errors"},
    "electrakit.engine": {"electrakit.errors"},
    "electrakit.engines": {"electrakit", "electrakit.engine", "electrakit.errors", "electrakit.progress"},
    "electrakit.hashes": set(),
    "electrakit.loading": {"electrakit.errors", "electrakit.hashes"},
    "electrakit.locks": {"electrakit.errors"},
    "electrakit.progress": set(),
    "electrakit.whole": {"electrakit.errors", "electrakit.locks"},
    "electrakit.data": BASE | {"electrakit.data"},
    "electrakit.network_config": {"electrakit.errors"},
    "electrakit.values": {"electrakit.errors"},
    "electrakit.pretrain_config": {"electrakit.errors", "electrakit.network_config", "electrakit.values"},
    "electrakit.presets": SETTINGS,
    "electrakit.arguments": SETTINGS | {"electrakit.presets"},
    "electrakit.model": SETTINGS | {"electrakit.model"},
    "electrakit.objective": SETTINGS | {"electrakit.model", "electrakit.objective"},
    "electrakit.train": SETTINGS
    | {
        "electrakit.run_files",
        "electrakit.data",
        "electrakit.hashes",
        "electrakit.loading",
        "electrakit.locks",
        "electrakit.model",
        "electrakit.objective",
        "electrakit.progress",
        "electrakit.train",
        "electrakit.whole",
    },
    "electrakit.evaluate_config": {"electrakit.config", "electrakit.errors"},
    "electrakit.search_config": {"electrakit.errors", "electrakit.evaluate_config"},
    "electrakit.evaluate": BASE  # any model, not ours
    | {"electrakit.evaluate_config", "electrakit.search_config", "electrakit.evaluate"},
    "electrakit.show": SETTINGS | {"electrakit.arguments", "electrakit.data", "electrakit.model"},
    "electrakit.share_config": {"electrakit.errors"},
    "electrakit.run_files": BASE,
    "electrakit.doctor": BASE | {"electrakit.data", "electrakit.doctor", "electrakit.run_files"},
    "electrakit.share": BASE  # reads files
    | {
        "electrakit.share_config",
        "electrakit.share",
        "electrakit.run_files",
        "electrakit.doctor",
    },
    "electrakit.share.report_glue": BASE  # published scores and counts of operations: data and arithmetic, no torch
    | SETTINGS
    | {
        "electrakit.evaluate.published",
        "electrakit.model.counts",
        "electrakit.presets",
        "electrakit.run_files",
        "electrakit.share",
    },
    "electrakit.share.open_pair": BASE | {"electrakit.share.pair", "electrakit.data", "electrakit.model"},
    "electrakit.share.pair": BASE | {"electrakit.data", "electrakit.objective"},
    "electrakit.share.convert": BASE | {"electrakit.share", "electrakit.data"},
    "electrakit.share.export": BASE
    | SETTINGS
    | {
        "electrakit.share",
        "electrakit.share_config",
        "electrakit.data",
        "electrakit.model",
        "electrakit.objective",
        "electrakit.train",
        "electrakit.run_files",
    },
    "electrakit.share.networks": BASE
    | SETTINGS
    | {
        "electrakit.share",
        "electrakit.data",
        "electrakit.model",
        "electrakit.objective",
        "electrakit.train",
        "electrakit.run_files",
    },
    "electrakit.demo": BASE
    | {
        "electrakit.data",
        "electrakit.doctor",
        "electrakit.presets",
        "electrakit.share",
        "electrakit.train",
    },
    "electrakit.cli": {"electrakit"},
    "electrakit.__main__": {"electrakit.cli"},
}


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


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


def longest_prefix(name: str, prefixes: set[str]) -> str | None:
    fitting = [prefix for prefix in prefixes if name == prefix or name.startswith(prefix + ".")]
    return max(fitting, key=len, default=None)


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path):
    name = module_name(path)
    home = name if name in MAY_IMPORT else longest_prefix(name, set(MAY_IMPORT) - {"electrakit"})
    assert home is not None, f"{name} has no place in the architecture: add it to MAY_IMPORT"
    for imported in imports_of(path):
        allowed = MAY_IMPORT[home]
        rest = {one for one in allowed if one != "electrakit"}
        is_allowed = imported == "electrakit" and "electrakit" in allowed
        is_allowed |= longest_prefix(imported, rest) is not None or (
            home == "electrakit.cli" and imported.startswith("electrakit.")
        )
        assert is_allowed, f"{name} imports {imported}, which stands above it"


def test_help_and_the_package_import_nothing_heavy():
    heavy = ["torch", "transformers", "numpy", "scipy", "sklearn", "matplotlib", "tokenizers", "pyarrow", "datasets"]
    code = f"import sys, electrakit, electrakit.cli; print([name for name in {heavy} if name in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


def test_every_public_name_is_there():
    for name in electrakit.__all__:
        assert getattr(electrakit, name).__doc__, name
    assert set(electrakit.__all__) <= set(dir(electrakit))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        electrakit.nothing  # noqa: B018  # the access is the test
