"""Measure how fast the playground answers, with random weights of electra_small: requests one after the other, and 100 at once.

python benchmarks/play.py
"""

import concurrent.futures
import statistics
import tempfile
import time
from pathlib import Path

import httpx
import torch

from electrakit import presets, to_transformers
from electrakit.data.tokenizer_files import load_tokenizer
from electrakit.model.build import build
from electrakit.playground.server import open_pairs, playing

SENTENCE = "The chef ate the meal and served it to the guests, who were waiting at the table near the window."


def write_pair(folder: Path) -> Path:
    """Write a pair with a vocabulary of the usual size, of which the sentence uses a few words."""
    words = sorted({word.strip(",.").lower() for word in SENTENCE.split()})
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ",", ".", *words]
    vocabulary += [f"word{number}" for number in range(30_522 - len(vocabulary))]
    generator, discriminator = build(presets.electra_small(vocab_size=len(vocabulary)))
    for network, place in ((discriminator, folder), (generator, folder / "generator")):
        network.eval()
        to_transformers(network).save_pretrained(place)
        (place / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
        load_tokenizer(place).save(place)
    return folder


def seconds(send, question: str, body: dict) -> tuple[float, int]:
    start = time.perf_counter()
    status = send(f"/api/{question}", json=body).status_code
    return time.perf_counter() - start, status


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        pairs = open_pairs([write_pair(Path(folder))])
    print(f"{torch.get_num_threads()} threads, {len(pairs[0].encode(SENTENCE).ids)} tokens")
    limits = httpx.Limits(max_connections=100)
    with (
        playing(pairs) as address,
        httpx.Client(base_url=address, limits=limits, timeout=60, trust_env=False) as client,
    ):
        for question, more in (("tokens", {}), ("predictions", {"place": 1}), ("round", {"seed": 1})):
            times = [seconds(client.post, question, {"text": SENTENCE, **more})[0] for _ in range(50)]
            p95 = statistics.quantiles(times, n=20)[-1]
            print(f"{question:8} median {1000 * statistics.median(times):6.1f} ms   p95 {1000 * p95:6.1f} ms")
        with concurrent.futures.ThreadPoolExecutor(100) as threads:
            start = time.perf_counter()
            waiting = [threads.submit(seconds, client.post, "tokens", {"text": SENTENCE}) for _ in range(100)]
            page = time.perf_counter()
            client.get("/")
            page = time.perf_counter() - page
            done = [one.result() for one in waiting]
            took = time.perf_counter() - start
        answered = [time for time, status in done if status == 200]
        sent_away = sum(status == 429 for _, status in done)
        print(
            f"100 at once: {len(answered)} answered, {sent_away} sent away (429), {took:.2f} s in all, "
            f"slowest answer {max(answered):.2f} s; the page itself meanwhile {1000 * page:.0f} ms"
        )


if __name__ == "__main__":
    main()
