"""A disk that is full at every call that needs room, a kill there, and too little memory: one line, and the same command goes on."""

import errno
import hashlib
import shutil
import signal

import pytest

from electrakit.runs import layout
from electrakit.runs.files import PretrainRun
from electrakit.train.checkpoint import find_damage
from tests.helpers.commands import Fault, compile_shim, open_commands
from tests.helpers.runs import assert_same

APART = 20
"""Between the calls of a trial: `make reliability`, with as many trials, tries all of them."""
EVER = 10**9


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    with open_commands(compile_shim(tmp_path_factory.mktemp("shim"))) as run:
        yield run


def training(shards, folder):
    sizes = ("--batch-size", 4, "--steps", 2, "--save-every", 1, "--valid-rows", 2, "--log-every", 1)
    return ("pretrain", "tiny", "--data", shards, "--run", folder, *sizes, "--precision", "fp32")


def calls_of(seed, trials, number):
    """The numbers of the calls that a trial tries; with few trials they are fewer."""
    return range(seed, number, APART) if trials.number >= APART else range(7 * seed, number, 3 * APART)


def assert_one_line(done):
    assert done.code == 2, done.said
    assert done.said.count("electra: ") == 1 and done.said.splitlines()[-1].startswith("electra: "), done.said
    assert "Traceback" not in done.said and "Exception" not in done.said, done.said


def assert_goes_on(run, command, folder, whole):
    """Checkpoints are whole; the same command ends with the same bits, and leaves nothing else behind."""
    for step in layout.checkpoint_steps(folder):
        assert find_damage(layout.checkpoint_path(folder, step)) is None
    again = run(*command)
    assert again.code == 0, again.said
    assert_same(PretrainRun(folder, 2, True), whole)
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {"step_0000001", "step_0000002"}
    shutil.rmtree(folder)


@pytest.fixture
def whole(run, shards, tmp_path):
    """A run that nothing disturbed, and how many of its calls need room."""
    folder = tmp_path / "whole"
    done = run(*training(shards, folder), faults=[Fault("write", errno.ENOSPC, folder, skip=EVER)])
    assert done.code == 0, done.said
    assert done.num_met > 100
    return PretrainRun(folder, 2, True), done.num_met


@pytest.mark.promise(
    "Training",
    "full disk at every write, sync and new file",
    "one line, exit code 2, earlier checkpoints stay, the same bits after a restart",
)
@pytest.mark.long
def test_a_disk_that_is_full_at_any_call_costs_nothing(run, shards, tmp_path, whole, trials):
    for seed in trials:
        numbers = calls_of(seed, trials, whole[1])
        for number in numbers:
            folder = tmp_path / f"full{number}"
            command = training(shards, folder)
            full = run(*command, faults=[Fault("write", errno.ENOSPC, folder, skip=number)])
            if full.code:  # after the last checkpoint only TensorBoard writes
                assert_one_line(full)
                assert "No space left" in full.said and "start the same command again" in full.said, full.said
            else:
                assert "complete" in full.said and number > whole[1] - 10, full.said
            assert_goes_on(run, command, folder, whole[0])
        trials.count(len(numbers) - 1)


@pytest.mark.promise(
    "Training", "SIGKILL at every system call that writes", "the same bits at the end, nothing left over"
)
@pytest.mark.long
def test_a_kill_at_any_call_costs_nothing(run, shards, tmp_path, whole, trials):
    """Also inside the libraries that write tensors."""
    for seed in trials:
        numbers = calls_of(seed, trials, whole[1])
        for number in numbers:
            folder = tmp_path / f"killed{number}"
            command = training(shards, folder)
            killed = run(*command, faults=[Fault("write", -signal.SIGKILL, folder, skip=number)])
            assert killed.code == -signal.SIGKILL, killed.said
            assert_goes_on(run, command, folder, whole[0])
        trials.count(len(numbers) - 1)


@pytest.mark.promise(
    "Training",
    "too little address space",
    "one line, exit code 2, earlier checkpoints stay, the same bits after a restart",
)
@pytest.mark.long
def test_a_run_without_memory_costs_nothing(run, shards, tmp_path):
    """A real process in which the activations of a large micro-batch do not fit, in its second step."""

    def command(name, micro_batch):
        return (*training(shards, tmp_path / name), "--batch-size", 2048, "--micro-batch", micro_batch)

    assert run(*command("whole", 256)).code == 0
    folder = tmp_path / "short"
    second = folder / "checkpoints" / ".step_0000002"
    assert run(*command("short", 256), faults=[Fault("write", -signal.SIGKILL, second)]).code == -signal.SIGKILL
    assert layout.checkpoint_steps(folder) == [1]
    short = run(*command("short", 2048), memory=2**28)
    assert_one_line(short)
    assert "not enough memory" in short.said and "--micro-batch, now 2048" in short.said, short.said
    assert layout.checkpoint_steps(folder) == [1]
    assert_goes_on(run, command("short", 256), folder, PretrainRun(tmp_path / "whole", 2, True))


# Other verbs


def contents(folder):
    """Of all files that do not say when they were written."""
    names = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    timed = ("results.", "seed_", "config.json", ".lock", "README.md", "electrakit.json")
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for name, path in names.items()
        if not any(part in name.rpartition("/")[2] for part in timed)
    }


@pytest.fixture(scope="module")
def inputs(shards, tmp_path_factory, run):
    folder = tmp_path_factory.mktemp("inputs")
    assert run(*training(shards, folder / "run")).code == 0
    assert run("export", folder / "run", "--out", folder / "model").code == 0
    lines = [f"{word}\t{label}" for label, word in (("yes", "ba"), ("no", "de"))] * 8
    (folder / "train.tsv").write_text("text\tlabel\n" + "\n".join(lines) + "\n")
    return folder


VERBS = {
    "tokenizer": lambda inputs, shards: (shards.parent / "corpus.txt", "--vocab-size", 120, "--workers", 1),
    "prepare": lambda inputs, shards: (
        *(shards.parent / "corpus.txt", "--tokenizer", shards / "tokenizer"),
        *("--length", 32, "--workers", 1),
    ),
    "export": lambda inputs, shards: (inputs / "run",),
    "finetune": lambda inputs, shards: (
        *(inputs / "model", "--train", inputs / "train.tsv", "--dev", inputs / "train.tsv"),
        *("--epochs", 1, "--batch-size", 8, "--length", 16, "--device", "cpu", "--threads", 1),
    ),
}


@pytest.mark.promise(
    "Environment",
    "full disk at every write of tokenizer, prepare, export and finetune",
    "one line, exit code 2, the same files after a restart",
)
@pytest.mark.long
@pytest.mark.parametrize("verb", VERBS)
def test_a_full_disk_is_one_line_of_every_verb(run, shards, inputs, tmp_path, verb, trials):
    command = (verb, *VERBS[verb](inputs, shards), "--out")
    whole = run(*command, tmp_path / "whole", faults=[Fault("write", errno.ENOSPC, tmp_path, skip=EVER)])
    assert whole.code == 0 and whole.num_met > 5, whole.said
    expected = contents(tmp_path / "whole")
    for seed in trials:
        number = seed * whole.num_met // trials.number
        out = tmp_path / f"{seed}" / "out"
        full = run(*command, out, faults=[Fault("write", errno.ENOSPC, out.parent, skip=number)])
        assert_one_line(full)
        assert "No space left" in full.said, full.said
        again = run(*command, out)
        assert again.code == 0, again.said
        assert contents(out) == expected
        assert {path.name for path in out.parent.iterdir()} == {"out"}
