"""The notebook works from its first cell to its last, and what it says about the model is true."""

import json
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "walk.ipynb"
CLAIMS = """
assert valid[-1]["mlm_loss"] < valid[0]["mlm_loss"] / 2
assert valid[-1]["disc_auc"] > 0.75
right, wrong = (dict(doubts(f"the captain steers the {thing} at night .")) for thing in ("ship", "soup"))
assert wrong["soup"] > 2 * right["ship"]
assert max(exported.differences.values()) < 1e-4
assert results.median > 0.5, results  # of four classes
"""


def test_the_notebook_is_saved_without_what_it_printed():
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code and all(not cell["outputs"] and cell["execution_count"] is None for cell in code)


@pytest.mark.long
def test_the_notebook_runs_and_its_model_has_learned_what_it_says(tmp_path, monkeypatch):
    import nbclient
    import nbformat

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell(CLAIMS))
    resources = {"metadata": {"path": str(tmp_path)}}
    client = nbclient.NotebookClient(notebook, timeout=None, kernel_name="python3", resources=resources)
    client.execute()  # raises what a cell raises
    pictures = [
        output for cell in notebook.cells for output in cell.get("outputs", []) if "image/png" in output.get("data", {})
    ]
    assert len(pictures) == 1
    assert (tmp_path / "walk" / "hf" / "generator" / "model.safetensors").exists()
