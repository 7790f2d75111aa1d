"""Fetching GLUE, from a server on this machine."""

import hashlib
import http.server
import io
import threading
import urllib.request
import zipfile

import pytest

from electrakit.common.errors import UserError
from electrakit.finetune import download
from electrakit.finetune.tasks import Download
from tests.helpers.command_line import electra


@pytest.fixture
def server():
    """`server.files["/a"] = bytes`; it counts what is asked for."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.server.asked.append(self.path)
            content = self.server.files.get(self.path)
            self.send_response(200 if content is not None else 404)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.files, server.asked = {}, []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def item(server, name, content, path):
    server.files[f"/{name}"] = content
    address = f"http://127.0.0.1:{server.server_port}/{name}"
    return Download(address, path, len(content), hashlib.sha256(content).hexdigest())


def zipped(files):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return content.getvalue()


def test_a_zip_is_unpacked_once_and_stays_in_its_folder(server, tmp_path):
    files = {
        "RTE/train.tsv": "a\n",
        "RTE/dev.tsv": "b\n",
        "../evil.tsv": "x",
        "/abs/evil.tsv": "x",
        "RTE/original/big.tsv": "x",
    }
    wanted = item(server, "RTE.zip", zipped({**files, "RTE/run.py": "x", "__MACOSX/._dev.tsv": "x"}), "RTE.zip")
    made = download.fetch(wanted, tmp_path / "glue")
    assert sorted(path.relative_to(tmp_path).as_posix() for path in made) == ["glue/RTE/dev.tsv", "glue/RTE/train.tsv"]
    inside = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert inside == {"train.tsv", "dev.tsv", f"RTE.zip.{wanted.sha256[:16]}"}
    assert download.fetch(wanted, tmp_path / "glue") == made
    assert server.asked == ["/RTE.zip"]
    (tmp_path / "glue" / "RTE" / "dev.tsv").unlink()
    assert download.fetch(wanted, tmp_path / "glue") == made
    assert (tmp_path / "glue" / "RTE" / "dev.tsv").read_text() == "b\n" and len(server.asked) == 2


def test_a_plain_file_goes_where_the_table_says(server, tmp_path):
    wanted = item(server, "AX.tsv", b"index\n", "diagnostic/diagnostic.tsv")
    assert download.fetch(wanted, tmp_path) == [tmp_path / "diagnostic" / "diagnostic.tsv"]
    assert (tmp_path / "diagnostic" / "diagnostic.tsv").read_bytes() == b"index\n"


def test_other_bytes_than_the_released_ones_are_refused(server, tmp_path):
    wanted = item(server, "a.tsv", b"right", "a.tsv")
    for content in (b"wrong", b"cut", b"much longer than it should be"):
        server.files["/a.tsv"] = content
        with pytest.raises(UserError, match=r"is not the released file|is larger than"):
            download.fetch(wanted, tmp_path)
    server.files.clear()
    with pytest.raises(UserError, match=r"cannot fetch .* \(Not Found\)"):
        download.fetch(wanted, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_without_a_network_it_is_one_line(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    monkeypatch.setattr(urllib.request, "_opener", None)  # it remembers the proxies of its first call
    assert electra("glue", "--download", tmp_path / "glue", "--tasks", "rte") == 2
    error = capsys.readouterr().err
    assert "cannot fetch https://dl.fbaipublicfiles.com/glue/data/RTE.zip" in error
    assert "is there a network?" in error and error.count("\n") == 1
