"""The playground's server over a real socket: good questions, bad ones, and many at once."""

import asyncio
import concurrent.futures
import itertools
import json
import queue
import re
import signal
import socket
import subprocess
import sys
import threading

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import electrakit as ek
from electrakit.cli.main import main
from electrakit.playground.answers import MAX_CHARACTERS
from electrakit.playground.app import MAX_BODY, MAX_WAITING, is_allowed_host, make_app
from electrakit.playground.open import open_pair
from electrakit.playground.server import HeaderTimeoutProtocol, listening, open_pairs, play
from tests.helpers.playground import playing
from tests.helpers.processes import HANG
from tests.helpers.tiny_pairs import VOCABULARY, write_discriminator, write_generator, write_pair

TEXT = "The café owner plays golf, unhappily!"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_pair(tmp_path_factory.mktemp("mine"))


@pytest.fixture(scope="module")
def pairs(folder, tmp_path_factory):
    other = write_discriminator(tmp_path_factory.mktemp("other"), "bert", vocabulary=[*VOCABULARY, "unhappily"])
    return open_pairs([folder, other])


@pytest.fixture(scope="module")
def address(pairs):
    with playing(pairs) as address:
        yield address


@pytest.fixture(scope="module")
def client(address):
    with httpx.Client(base_url=address, timeout=HANG, trust_env=False) as client:
        yield client


def asked(address: str, question: str) -> httpx.Response:
    return httpx.post(f"{address}api/{question}", json={"text": TEXT}, timeout=HANG, trust_env=False)


def is_alive(client) -> bool:
    return client.post("/api/tokens", json={"text": TEXT}).status_code == 200


def refusal(response) -> str:
    """A 4xx with one line."""
    assert 400 <= response.status_code < 500, response
    assert set(response.json()) == {"error"} and "\n" not in response.json()["error"]
    return response.json()["error"]


# --- answers ---


def test_tokens_are_those_of_the_pair(client, pairs):
    answer = client.post("/api/tokens", json={"text": TEXT}).json()["models"]
    for found, pair in zip(answer, pairs, strict=True):
        encoded = pair.encode(TEXT)
        assert [token["token"] for token in found["tokens"]] == [token.token for token in encoded.tokens]
        assert "".join(token["before"] + token["text"] for token in found["tokens"]) + found["tail"] == TEXT
        assert [token["p"] for token in found["tokens"]] == pytest.approx(pair.replaced(encoded.ids)[1:-1], abs=1e-6)
    assert len(answer[0]["tokens"]) == len(answer[1]["tokens"]) + 2  # another vocabulary, other pieces


def test_predictions_come_with_the_text_that_each_would_make(client, pairs):
    answer = client.post("/api/predictions", json={"text": TEXT, "model": 0, "place": 4}).json()
    assert answer["here"]["token"] == "golf" and len(answer["predictions"]) == 8
    found = pairs[0].predictions(pairs[0].encode(TEXT), 4)
    assert [(one["token"], one["text"]) for one in answer["predictions"]] == [
        (one.token, one.text) for one in found.best
    ]
    assert [one["p"] for one in answer["predictions"]] == pytest.approx(
        [one.probability for one in found.best], abs=1e-6
    )
    assert "needs" in refusal(client.post("/api/predictions", json={"text": TEXT, "model": 1, "place": 0}))
    assert "has 10 tokens" in refusal(client.post("/api/predictions", json={"text": TEXT, "place": 10}))


def test_a_round_is_the_same_for_the_same_seed_and_asks_every_discriminator(client, pairs):
    question = {"text": TEXT, "rate": 0.5, "temperature": 1.5, "seed": 3}
    answer = client.post("/api/round", json=question).json()
    assert answer == client.post("/api/round", json=question).json()
    assert answer != client.post("/api/round", json={**question, "seed": 4}).json()
    played = pairs[0].corrupt(pairs[0].encode(TEXT), 0.5, 1.5, 3)
    assert [token["is_replaced"] for token in answer["tokens"]] == played.is_replaced[1:-1]
    assert [token["p"][0] for token in answer["tokens"]] == pytest.approx(
        pairs[0].replaced(played.corrupted)[1:-1], abs=1e-6
    )
    assert all(0 <= token["p"][1] <= 1 for token in answer["tokens"])  # read as text
    assert "no word" in refusal(client.post("/api/round", json={**question, "text": " [MASK] "}))


def test_special_tokens_have_no_score_and_what_is_cut_is_said(client):
    found = client.post("/api/tokens", json={"text": "golf [MASK] " + "golf " * 100}).json()["models"][0]
    assert found["tokens"][1]["p"] is None and found["tokens"][0]["p"] is not None
    assert len(found["tokens"]) == 62 and found["num_cut"] == 40 and found["tail"].startswith(" golf")
    assert client.post("/api/tokens", json={"text": ""}).json()["models"][0]["tokens"] == []


def test_what_is_there_is_told(client):
    about = client.get("/api/about").json()
    assert [model["generator"] is None for model in about["models"]] == [False, True]
    assert about["models"][1]["discriminator"]["family"] == "bert"
    assert about["models"][0]["max_tokens"] == 62


def test_a_generator_alone_gives_tokens_without_scores(tmp_path):
    with playing(open_pairs([write_generator(tmp_path)])) as address:
        answer = asked(address, "tokens").json()["models"][0]
        assert {token["p"] for token in answer["tokens"]} == {None}
        played = asked(address, "round").json()
        assert {token["p"][0] for token in played["tokens"]} == {None}


# --- hostile questions ---


def test_every_answer_has_the_headers_that_keep_a_browser_safe(client):
    answers = [
        client.get("/"),
        client.get("/app.js"),
        client.get("/api/about"),
        client.get("/nothing"),
        client.post("/api/tokens", content="{"),
        client.get("/", headers={"host": "evil.example"}),
    ]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'")
        assert "unsafe" not in policy and "http" not in policy and "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert "access-control-allow-origin" not in answer.headers


@pytest.mark.promise("Playground", "bad request bodies", "refused")
@pytest.mark.parametrize(
    "body",
    [
        *[
            "",
            "{",
            "nonsense",
            "[]",
            "null",
            "1",
            '"text"',
            "NaN",
            '{"text": NaN}',
            "\x00",
            "[" * 60_000,
            '{"a":' * 9_000,
        ],
        *['{"text": 1}', '{"text": null}', '{"text": ["a"]}', '{"text": "\\ud800"}', '{"TEXT": "a"}', "{}"],
        *['{"text": "a", "more": 1}', json.dumps({"text": "a" * (MAX_CHARACTERS + 1)})],
    ],
)
@pytest.mark.parametrize("question", ["tokens", "predictions", "round"])
def test_bad_bodies_are_refused(client, question, body):
    refusal(client.post(f"/api/{question}", content=body, headers={"content-type": "application/json"}))


@pytest.mark.parametrize(
    ("question", "field"),
    [
        *[("predictions", {"place": value}) for value in (-1, 1.0, True, "0", None, 10**30, [])],
        *[("predictions", {"place": 0, "model": value}) for value in (-1, 2, 0.0, False, "0", None)],
        *[("round", {"rate": value}) for value in (0, -0.1, 1, "0.15", None, True)],
        *[("round", {"temperature": value}) for value in (0, -1, 1e9, "hot")],
        *[("round", {"seed": value}) for value in (-1, 0.5, 2**53, 10**400, "1")],
    ],
)
def test_values_of_a_wrong_type_or_out_of_range_are_refused(client, question, field):
    assert next(reversed(field)) in refusal(client.post(f"/api/{question}", json={"text": TEXT, **field}))


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_none_are_refused(client, value):
    body = f'{{"text": "golf", "rate": {value}}}'
    said = refusal(client.post("/api/round", content=body, headers={"content-type": "application/json"}))
    assert said == ("rate must be a number from 0.01 to 0.9" if value == "1e999" else "the body is not JSON")


@pytest.mark.promise("Playground", "requests of other sites", "refused")
def test_other_hosts_and_origins_are_refused(client, address):
    port = httpx.URL(address).port
    question = {"text": TEXT}
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "192.168.0.1", "", "localhost@evil"):
        refusal(client.post("/api/tokens", json=question, headers={"host": host}))
        refusal(client.get("/", headers={"host": host}))
    for origin in ("http://evil.example", "null", f"https://127.0.0.1:{port}", "http://127.0.0.1:1", ""):
        refusal(client.post("/api/tokens", json=question, headers={"origin": origin}))
    refusal(client.post("/api/tokens", json=question, headers={"sec-fetch-site": "cross-site"}))
    # a tunnel has its own port
    for host in (f"localhost:{port}", f"127.0.0.1:{port}", "localhost:9000", f"[::1]:{port}"):
        own = {"host": host, "origin": f"http://{host}", "sec-fetch-site": "same-origin"}
        assert client.post("/api/tokens", json=question, headers=own).status_code == 200


def test_which_hosts_are_ours():
    assert is_allowed_host("box.lan:8000", "box.lan") and not is_allowed_host("other.lan", "box.lan")
    assert is_allowed_host("10.0.0.7:8000", "0.0.0.0") and not is_allowed_host("evil.example", "0.0.0.0")
    assert not is_allowed_host("10.0.0.7", "127.0.0.1") and is_allowed_host("LOCALHOST", "127.0.0.1")


@pytest.mark.promise("Playground", "wrong methods, types and paths", "refused")
def test_wrong_methods_content_types_and_paths_are_refused(client):
    body = json.dumps({"text": TEXT})
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "application/jsonp"):
        answer = client.post("/api/tokens", content=body, headers={"content-type": kind})
        assert answer.status_code == 415 and refusal(answer)
    assert client.get("/api/tokens").status_code == 405
    assert client.get("/api/tokens/", follow_redirects=False).status_code == 404
    assert client.put("/api/tokens", json={}).status_code == 405
    assert client.delete("/").status_code == 405 and refusal(client.post("/", json={}))
    for path in (
        "/../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/static/../app.py",
        "//etc/passwd",
        "/app.py",
        "/..%2fapp.py",
    ):
        assert b"root:" not in raw(client, path) and b"404" in raw(client, path).split(b"\r\n")[0]


def raw(client, path: str) -> bytes:
    """Without a client that tidies the path up."""
    with socket.create_connection(("127.0.0.1", client.base_url.port), HANG) as line:
        line.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        return b"".join(iter(lambda: line.recv(65536), b""))


@pytest.mark.promise("Playground", "huge bodies", "cut off before they are read")
def test_a_huge_body_is_cut_off_before_it_was_read(client):
    with socket.create_connection(("127.0.0.1", client.base_url.port), HANG) as line:
        line.sendall(
            b"POST /api/tokens HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        num_sent = 0
        try:
            for _ in range(1000):  # 64 MB, if it lets us
                line.sendall(b"10000\r\n" + b"a" * 65536 + b"\r\n")
                num_sent += 65536
        except OSError:
            pass
        assert num_sent < 32 * 2**20
    assert (
        client.post("/api/tokens", content=b"a" * 2**20, headers={"content-type": "application/json"}).status_code
        == 413
    )
    long_text = client.post("/api/tokens", json={"text": "a" * (MAX_BODY - 100)})
    assert long_text.status_code == 413 and f"{MAX_CHARACTERS:,}" in refusal(long_text)
    assert is_alive(client)


@pytest.mark.promise("Playground", "garbage and half requests", "harmless")
def test_garbage_and_half_a_request_harm_nothing(client):
    for garbage in (
        b"\x16\x03\x01\x00",
        b"GET\r\n\r\n",
        b"POST /api/tokens HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{",
    ):
        with socket.create_connection(("127.0.0.1", client.base_url.port), HANG) as line:
            line.sendall(garbage)
    assert is_alive(client)


def test_a_slow_body_is_given_up(pairs, monkeypatch):
    monkeypatch.setattr("electrakit.playground.app.MAX_SECONDS", 0.3)
    with playing(pairs) as address, socket.create_connection(("127.0.0.1", httpx.URL(address).port), HANG) as line:
        line.sendall(
            b"POST /api/tokens HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{"
        )
        assert b" 408 " in line.recv(4096)


@pytest.mark.promise("Playground", "slow clients", "given up")
def test_half_a_header_is_given_up_and_a_slow_answer_is_not(pairs, monkeypatch):
    timers, update_timer = queue.SimpleQueue(), HeaderTimeoutProtocol.update_timer

    def watched(protocol):
        update_timer(protocol)
        timers.put(protocol.header_timer)

    monkeypatch.setattr(HeaderTimeoutProtocol, "update_timer", watched)
    monkeypatch.setattr("electrakit.playground.server.MAX_SECONDS", HANG)
    whole = b"GET /api/about HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with playing(pairs) as address:
        for before in (b"", whole):  # of the first request of a connection, and of a later one
            with socket.create_connection(("127.0.0.1", httpx.URL(address).port), HANG) as line:
                timer = timers.get(timeout=HANG)
                if before:
                    line.sendall(before)
                    assert timers.get(timeout=HANG) is None and timer.cancelled()  # however long the answer takes
                while before and not before.endswith(b"}"):
                    before = line.recv(65536)
                    assert before
                line.sendall(whole[:-2])
                timer = timers.get(timeout=HANG)
                timer._loop.call_soon_threadsafe(timer._run)  # now, not after MAX_SECONDS
                assert line.recv(4096) == b""


def test_requests_of_clients_that_have_left_are_not_computed(client, pairs, monkeypatch):
    may_answer, computed, replaced = threading.Event(), [], pairs[0].replaced

    def held_up(ids):
        computed.append(ids)
        may_answer.wait(HANG)
        return replaced(ids)

    monkeypatch.setattr(pairs[0], "replaced", held_up)
    body = json.dumps({"text": TEXT}).encode()
    header = (
        f"POST /api/tokens HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    )
    lines = [socket.create_connection(("127.0.0.1", client.base_url.port), HANG) for _ in range(6)]
    try:
        for line in lines:
            line.sendall(header.encode() + b"\r\n\r\n" + body)
        while not computed:  # the first is at work, the others wait
            assert client.get("/").status_code == 200
        for line in lines:
            line.shutdown(socket.SHUT_WR)
            assert line.recv(1) == b""
        assert all(client.get("/").status_code == 200 for _ in range(3))  # they are seen to have gone
    finally:
        may_answer.set()
        for line in lines:
            line.close()
    assert is_alive(client) and len(computed) == 2


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)
FIELDS = {
    name: ANY_JSON | st.integers(0, 3) | st.floats(0, 1) for name in ("model", "place", "rate", "temperature", "seed")
}
QUESTION = st.fixed_dictionaries({"text": ANY_JSON | st.text(max_size=200)}, optional=FIELDS)


@settings(deadline=None, max_examples=120)
@given(body=ANY_JSON | QUESTION, question=st.sampled_from(["tokens", "predictions", "round"]))
def test_any_json_gets_an_answer_or_a_refusal(client, body, question):
    headers = {"content-type": "application/json"}
    answer = client.post(f"/api/{question}", content=json.dumps(body), headers=headers)
    assert answer.status_code == 200 or refusal(answer)
    json.loads(answer.content, parse_constant=pytest.fail)


@pytest.mark.promise("Playground", "random bytes", "refused")
@settings(deadline=None, max_examples=40)
@given(body=st.binary(max_size=300))
def test_any_bytes_get_a_refusal(client, body):
    refusal(client.post("/api/tokens", content=body, headers={"content-type": "application/json"}))


@pytest.mark.promise("Playground", "100 requests at once", "answered or sent away")
def test_a_hundred_questions_at_once_are_answered_or_sent_away(client, address, pairs, monkeypatch):
    """The models are held up meanwhile."""
    may_answer, replaced = threading.Event(), pairs[0].replaced
    monkeypatch.setattr(pairs[0], "replaced", lambda ids: may_answer.wait(HANG) and replaced(ids))
    limits = httpx.Limits(max_connections=100)
    with (
        httpx.Client(base_url=address, timeout=HANG, limits=limits, trust_env=False) as many,
        concurrent.futures.ThreadPoolExecutor(100) as threads,
    ):
        waiting = [threads.submit(many.post, "/api/tokens", json={"text": TEXT}) for _ in range(100)]
        try:
            sent_away = list(itertools.islice(concurrent.futures.as_completed(waiting), 100 - MAX_WAITING))
            assert client.get("/").status_code == 200  # the page itself does not wait
        finally:
            may_answer.set()
        assert {one.result().status_code for one in sent_away} == {429}
        assert {one.result().status_code for one in waiting if one not in sent_away} == {200}
    assert is_alive(client)


def test_whoever_is_sent_away_is_told_when_to_come_again(pairs, monkeypatch):
    monkeypatch.setattr("electrakit.playground.app.MAX_WAITING", 0)
    with playing(pairs) as address:
        answer = asked(address, "tokens")
        assert answer.status_code == 429 and answer.headers["retry-after"] == "1" and refusal(answer)


# --- starting and stopping ---


def test_two_models_of_one_name_are_told_apart(tmp_path):
    places = [write_discriminator(tmp_path / side / "mine") for side in ("a", "b")]
    assert [pair.name for pair in open_pairs(places)] == [str(place) for place in places]


def test_what_cannot_be_served_is_said_in_one_line(folder, tmp_path):
    import torch

    with listening("127.0.0.1", 0) as taken, pytest.raises(ek.UserError, match=r"cannot listen at .*in use"):
        play(folder, port=taken.getsockname()[1])
    for settings_, message in [
        ({"port": 70_000}, "--port 70000"),
        ({"host": "no such host"}, "--host 'no such host'"),
        ({"host": "192.0.2.1"}, "cannot listen at 192.0.2.1"),
    ]:
        with pytest.raises(ek.UserError, match=message):
            play(folder, **{"port": 0, **settings_})
    for models in ([], [folder] * 3):
        with pytest.raises(ek.UserError, match=r"name one, (as .*, )?or two"):
            play(models, port=0)
    pair = open_pair(folder)
    pair.discriminator.model.discriminator_predictions.dense.bias.fill_(torch.nan)
    pair.discriminator.model.save_pretrained(tmp_path / "nan")
    open_pair(folder).tokenizer.save(tmp_path / "nan")
    with pytest.raises(ek.UserError, match="NaN"):
        open_pairs([tmp_path / "nan"])


@pytest.mark.long
def test_the_command_prints_its_address_and_leaves_quietly(folder):
    command = [sys.executable, "-m", "electrakit", "play", str(folder), "--port", "0", "--host", "0.0.0.0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        said = [process.stdout.readline() for _ in range(3)]
        assert "discriminator: electra" in said[0] and "whoever can reach it" in said[1]
        address = re.search(r"http://127\.0\.0\.1:\d+/", said[2])[0]
        assert httpx.get(address, timeout=HANG, trust_env=False).status_code == 200
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=HANG)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0 and rest == "" and "Traceback" not in errors


def test_the_command_refuses_what_is_no_model(tmp_path, capsys):
    with pytest.raises(SystemExit) as left:
        main(["play", str(tmp_path / "nothing"), "--port", "0"])
    said = capsys.readouterr().err
    assert left.value.code == 2 and said.startswith("electra: there is no folder") and said.count("\n") == 1


def test_the_application_can_be_mounted_elsewhere(pairs):
    transport = httpx.ASGITransport(make_app(pairs, "play.example"))

    async def ask():
        async with httpx.AsyncClient(transport=transport, base_url="http://play.example") as client:
            return await client.post("/api/tokens", json={"text": TEXT}), await client.get("http://other.example/")

    good, bad = asyncio.run(ask())
    assert good.status_code == 200 and refusal(bad)
