"""The Hub: everything is sent in one commit, or nothing, and what goes wrong is said; tried with a Hub of our own."""

import base64
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

import electrakit as ek
from electrakit.cli.main import main
from electrakit.export.hub import push
from electrakit.runs.files import PretrainRun

SMALL = {"num_layers": 1, "hidden_size": 16, "ffn_size": 16, "num_heads": 1, "embedding_size": 16}


@pytest.fixture(scope="module")
def run(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> PretrainRun:
    settings = {"length": 32, "vocab_size": 120, "steps": 1, "batch_size": 4, "valid_rows": 4, "precision": "fp32"}
    networks = {"discriminator": SMALL, "generator": SMALL}
    return ek.pretrain(ek.presets.tiny(data=shards, run=tmp_path_factory.mktemp("run"), **settings, **networks))


def files_of(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


class Hub(BaseHTTPRequestHandler):
    """As much of the Hub as it takes to receive a commit."""

    protocol_version = "HTTP/1.1"
    commits: list[list[dict[str, Any]]]
    files: dict[str, bytes]
    created: list[dict[str, Any]]
    status: int = 200

    def do_POST(self) -> None:
        body = self.body()
        answer: dict[str, Any] = {"url": f"http://{self.headers['Host']}/me/mine"}
        if self.path == "/api/repos/create":
            self.created.append(json.loads(body))
        elif "/preupload/" in self.path:
            names = [file["path"] for file in json.loads(body)["files"]]
            modes = {"uploadMode": "regular", "shouldIgnore": False}
            answer = {"files": [{"path": name, **modes} for name in names]}
        elif "/commit/" in self.path:
            self.commits.append([json.loads(line) for line in body.splitlines()])
            for line in self.commits[-1]:
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
                elif line["key"] == "deletedFile":
                    del self.files[line["value"]["path"]]
            answer = {"commitUrl": f"http://{self.headers['Host']}/me/mine/commit/{'0' * 40}", "commitOid": "0" * 40}
        self.answer(self.status, answer)

    def do_GET(self) -> None:
        if "/tree/" in self.path:
            found = [{"type": "file", "path": name, "size": len(self.files[name]), "oid": "0"} for name in self.files]
            self.answer(200, found)
        else:
            self.do_HEAD()

    def do_HEAD(self) -> None:
        content = self.files.get(self.path.partition("/resolve/main/")[2])
        self.send_response(404 if content is None else 200)
        for name, value in {"ETag": '"0"', "X-Repo-Commit": "0" * 40, "Connection": "close"}.items():
            self.send_header(name, value)
        if content is None:
            self.send_header("X-Error-Code", "EntryNotFound")
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content or b"")

    def body(self) -> bytes:
        if "Content-Length" in self.headers:
            return self.rfile.read(int(self.headers["Content-Length"]))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def answer(self, status: int, content: Any) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    """A Hub of our own at this machine."""
    kind = type("OwnHub", (Hub,), {"commits": [], "created": [], "files": {}})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setenv("HF_TOKEN", "hf_of_a_test")
    yield kind
    server.shutdown()
    server.server_close()


def test_push_sends_every_file_in_one_commit(run, hub, tmp_path, capsys):
    main_exits("export", str(run.path), "--out", str(tmp_path / "hf"), "--push", "me/mine", "--private")
    assert hub.created[0]["name"] == "mine" and "private" in hub.created[0].values()
    (commit,) = hub.commits
    sent = {line["value"]["path"] for line in commit if line["key"] == "file"}
    assert sent == files_of(tmp_path / "hf")
    assert "me/mine" in capsys.readouterr().out.splitlines()[-1]
    assert 'name = "me/mine"' in (tmp_path / "hf" / "README.md").read_text()


def test_a_later_push_removes_what_only_the_earlier_one_had_and_nothing_else(hub, tmp_path):
    for folder, names in {"first": ("model", "onnx/model", "onnx/x [1].txt"), "second": ("model",)}.items():
        (tmp_path / folder / "onnx").mkdir(parents=True)
        for name in names:
            (tmp_path / folder / name).write_text(folder)
        (tmp_path / folder / "electrakit.json").write_text(json.dumps({"files": dict.fromkeys(names, "hash")}))
    push(tmp_path / "first", "me/mine", "electrakit.json", is_private=True)
    hub.files |= {"notes.md": b"by hand", "onnx/mine": b"too"}
    push(tmp_path / "second", "me/mine", "electrakit.json", is_private=True)
    assert set(hub.files) == {"model", "electrakit.json", "notes.md", "onnx/mine"} and len(hub.commits) == 2
    assert hub.files["model"] == b"second"


def test_a_dry_run_lists_everything_and_sends_nothing(run, hub, tmp_path, capsys):
    arguments = ["--out", str(tmp_path / "hf"), "--push", "me/mine", "--dry-run"]
    main_exits("export", str(run.path), *arguments)
    printed = capsys.readouterr().out
    assert not hub.created and not hub.commits
    for name in files_of(tmp_path / "hf"):
        assert name in printed
    assert "would be sent to me/mine; nothing was" in printed
    assert "reloaded: logits of the discriminator equal" in printed


def test_what_the_hub_refuses_is_said_in_one_line(run, hub, tmp_path, monkeypatch):
    hub.status = 403
    with pytest.raises(ek.UserError, match=r"the token may not write to me/mine; the export is complete in .*hf"):
        ek.export(run, tmp_path / "hf", push="me/mine")
    assert (tmp_path / "hf" / "model.safetensors").exists()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{port}")
    with pytest.raises(ek.UserError, match=rf"cannot reach http://127\.0\.0\.1:{port} for --push me/mine"):
        ek.export(run, tmp_path / "hf", push="me/mine")


def test_without_a_token_nothing_is_begun(run, tmp_path, monkeypatch):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    with pytest.raises(ek.UserError, match="--push me/mine needs a token of the Hugging Face Hub that may write"):
        ek.export(run, tmp_path / "hf", push="me/mine")
    assert not (tmp_path / "hf").exists()


def main_exits(*arguments: str) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 0
