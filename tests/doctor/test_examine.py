"""The doctor: finds each problem in a corpus that has it, and none in a healthy one."""

import functools
import shutil
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from scipy.stats import entropy

from electrakit import Batches, UserError, examine, prepare, train_tokenizer
from electrakit.data.read import docstrings
from electrakit.doctor.examine import CORPUS_CHECKS
from electrakit.doctor.findings import Examination, Finding, Measure, format_measure, print_findings
from tests.helpers.scripts import TEXTS


@functools.cache
def real_prose() -> list[str]:
    """Real English that is always there: the docstrings of the standard library, a document for each file."""
    files = [file for file in docstrings.python_files() if "site-packages" not in file.parts]
    found = [docstrings.paragraphs(file.read_text(encoding="utf-8", errors="replace")) for file in files]
    return ["\n".join(dict.fromkeys(paragraphs)) for paragraphs in found if len(paragraphs) > 3]


def prose(num_documents: int) -> list[str]:
    return real_prose()[:num_documents]


def write(path, documents):
    path.write_text("\n\n".join(documents), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("healthy")
    text = write(folder / "text.txt", real_prose())
    train_tokenizer([text], vocab_size=750, out=folder / "tokenizer", workers=1)
    prepare([text], tokenizer=folder / "tokenizer", length=64, valid=0.05, out=folder / "shards", workers=1)
    return folder


def titles(examination) -> set[str]:
    return {finding.title for finding in examination.findings}


@pytest.mark.long
def test_a_healthy_corpus_and_its_shards_have_no_findings(healthy):
    assert titles(examine([healthy / "text.txt"], tokenizer=str(healthy / "tokenizer"), workers=1)) == set()
    assert titles(examine([healthy / "shards"], workers=1)) == set()


def test_letters_joined_with_spaces_are_serious_in_text_and_in_shards(healthy, tmp_path):
    """The mistake behind a loss that stops after warm-up: " ".join over a string."""
    text = write(tmp_path / "letters.txt", [" ".join(document.replace(" ", "")) for document in prose(100)])
    found = examine([text], workers=1)
    assert "too many words are single letters" in titles(found)
    assert found.is_serious
    prepare([text], tokenizer=healthy / "tokenizer", out=tmp_path / "shards", workers=1)
    assert "too many words are single letters" in titles(examine([tmp_path / "shards"], workers=1))


RUSSIAN = """В саду и в поле было тихо, и я с ней о том не говорил. К реке мы шли в тумане, а у воды и в лодке я и она молчали.
О чём я думал? О лете, о море и о доме, в котором я жил с отцом и у которого в окне и в стене я знал все щели."""
POLISH = """W domu i w ogrodzie było cicho, a z okna i z drzwi szedł chłód. O świcie i o zmroku w lesie i w polu ktoś śpiewał, a
u nas i u sąsiadów w piecu i w kuchni palił się ogień. I ja, i on z żalem o tym i o owym w milczeniu myśleli."""
CZECH = """V domě i v zahradě bylo ticho a z okna i z dveří šel chlad. K ránu a k večeru v lese i v poli někdo zpíval, a u nás i u
sousedů v peci a v kuchyni hořel oheň. I já, i on s lítostí o tom a o onom v tichu a v klidu u stolu přemýšleli."""


@pytest.mark.long
@pytest.mark.parametrize("language", ["RUSSIAN", "POLISH", "CZECH"])
def test_languages_with_words_of_one_letter_are_left_in_peace(tmp_path, language):
    text = write(tmp_path / "text.txt", [globals()[language], globals()[language].replace("\n", " ")])
    found = examine([text], workers=1)
    assert titles(found) == set() and found.measures[Measure.SINGLE_LETTERS] > 0.25
    train_tokenizer([text], vocab_size=150, min_frequency=3, out=tmp_path / "tokenizer", workers=1)
    prepare([text], tokenizer=tmp_path / "tokenizer", length=64, out=tmp_path / "shards", workers=1)
    assert "too many words are single letters" not in titles(examine([tmp_path / "shards"], workers=1))
    text = write(tmp_path / "letters.txt", [" ".join(globals()[language])] * 2)
    found = examine([text], workers=1)
    assert "too many words are single letters" in titles(found) and found.is_serious


def test_letters_of_a_script_without_capitals_are_found_too(tmp_path):
    text = write(
        tmp_path / "text.txt",
        [" ".join("המגדלור הישן עמד בקצה הדרך ואיש לא גר בו שנים רבות") + f" {n}" for n in range(50)],
    )
    assert "too many words are single letters" in titles(examine([text], workers=1))


def test_program_code_is_found_in_text_and_in_shards_and_prose_is_far_from_it(healthy, tmp_path):
    files = [file for file in docstrings.python_files() if "site-packages" not in file.parts][:60]
    text = write(tmp_path / "code.txt", [file.read_text(encoding="utf-8", errors="replace") for file in files])
    assert "much of the text is program code or markup" in titles(examine([text], workers=1))
    prepare([text], tokenizer=healthy / "tokenizer", length=64, out=tmp_path / "shards", workers=1)
    assert "much of the text is program code or markup" in titles(examine([tmp_path / "shards"], workers=1))
    for good in ("text.txt", "shards"):
        assert examine([healthy / good], workers=1).measures[Measure.CODE] < 0.02


@pytest.mark.parametrize("damage", ["unfinished", "lost", "cut", "no counts"])
def test_shards_that_are_unfinished_or_damaged_are_not_taken_for_text(healthy, tmp_path, damage):
    shards = tmp_path / "shards"
    shutil.copytree(healthy / "shards", shards)
    manifest = shards / "manifest.json"
    content = manifest.read_text()
    if damage == "cut":
        manifest.write_text(content[: len(content) // 2])
    elif damage == "no counts":
        manifest.write_text(content.replace('"counts"', '"numbers"'))
    else:
        manifest.unlink()
    if damage == "unfinished":
        (shards / ".prepare").mkdir()
        for file in shards.glob("*.bin"):
            file.unlink()
    with pytest.raises(UserError) as seen:
        examine([shards], workers=1)
    if damage == "no counts":
        assert "manifest.json lacks counts: " in str(seen.value)
    else:
        with pytest.raises(UserError) as said:
            Batches(shards, 1)
        assert str(seen.value) == str(said.value)


def test_what_needs_a_tokenizer_is_said_to_be_left_out(healthy, capsys):
    print_findings(examine([healthy / "text.txt"], workers=1))
    line = next(line for line in capsys.readouterr().out.splitlines() if "--tokenizer" in line)
    assert "[UNK] tokens" in line and "tokens per word" in line
    for one in ([healthy / "text.txt"], healthy / "tokenizer"), ([healthy / "shards"], None):
        print_findings(examine(one[0], tokenizer=one[1], workers=1))
        assert "--tokenizer" not in capsys.readouterr().out


def test_shares_are_shown_as_percent_with_few_digits(healthy, tmp_path, capsys):
    values = [0, 4.92e-06, 0.0005412, 0.19123, 1]
    assert [format_measure(Measure.UNKNOWN_TOKENS, value) for value in values] == [
        "0 %",
        "< 0.01 %",
        "0.0541 %",
        "19.1 %",
        "100 %",
    ]
    assert format_measure(Measure.TOKENS_PER_WORD, 1.3123) == "1.31"
    assert format_measure(Measure.TOKENS, 1_234_567.8) == "1,234,568"
    short = write(tmp_path / "short.txt", [f"only number {number} here" for number in range(99)])
    found = examine([healthy / "text.txt"], tokenizer=healthy / "tokenizer", workers=1)
    print_findings(examine([short], tokenizer=healthy / "tokenizer", workers=1))
    for measure, value in found.measures.items():
        assert (measure.kind == "share") == ("%" in format_measure(measure, value))
    assert "short documents: 100 % (healthy below 50 %)" in capsys.readouterr().out


def test_text_in_another_script_is_unknown_to_the_tokenizer(healthy, tmp_path):
    text = write(
        tmp_path / "russian.txt", ["Старый дом стоял в конце переулка, и много лет в нём никто не жил.\n" * 5] * 20
    )
    found = examine([text], tokenizer=str(healthy / "tokenizer"), workers=1)
    assert {"many words are unknown to the tokenizer", "documents occur several times"} <= titles(found)
    assert found.is_serious


def test_words_that_fall_into_many_pieces_mean_a_vocabulary_that_does_not_fit(healthy, tmp_path):
    text = write(
        tmp_path / "long.txt",
        [
            " ".join(["donaudampfschifffahrtsgesellschaft", "verkehrswegeplan"] * 20) + f" {number}"
            for number in range(50)
        ],
    )
    assert "the vocabulary does not fit the text" in titles(
        examine([text], tokenizer=str(healthy / "tokenizer"), workers=1)
    )


def test_copies_short_documents_and_tables_are_found(tmp_path):
    copies = write(tmp_path / "copies.txt", prose(50) * 3)
    assert titles(examine([copies], workers=1)) == {"documents occur several times"}
    short = write(tmp_path / "short.txt", [f"line {number} is a short one\nand so is {number}" for number in range(99)])
    assert "most documents are very short" in titles(examine([short], documents="line", workers=1))
    table = write(
        tmp_path / "table.txt",
        [
            "\n".join(f"{row * 17 % 97} | {row * 31 % 89} | 0.{row}" for row in range(document, document + 40))
            for document in range(30)
        ],
    )
    assert "much of the text is not prose" in titles(examine([table], workers=1))


def test_rows_of_padding_and_a_missing_validation_split_are_found_in_shards(healthy, tmp_path):
    short = write(tmp_path / "short.txt", [f"only number {number} here" for number in range(400)])
    prepare([short], tokenizer=healthy / "tokenizer", length=128, valid=0.0, out=tmp_path / "shards", workers=1)
    found = titles(examine([tmp_path / "shards"], workers=1))
    assert {"many rows are mostly padding", "there is no validation split"} <= found


def test_a_tiny_corpus_for_a_large_vocabulary_and_lost_tokens_are_found(healthy, tmp_path):
    text = write(tmp_path / "few.txt", [" ".join(document.split("\n")) for document in prose(8)])
    prepare(
        [text],
        tokenizer=healthy / "tokenizer",
        length=48,
        rows="official",
        valid=0.0,
        out=tmp_path / "shards",
        workers=1,
    )
    assert {"the corpus is tiny for this vocabulary", "the row builder throws text away"} <= titles(
        examine([tmp_path / "shards"], workers=1)
    )


def test_the_unigram_entropy_is_scipys(healthy):
    batches = Batches(healthy / "shards", 1, shuffle=False)
    ids = np.concatenate([batches(row).ravel() for row in range(batches.num_rows)])
    counts = np.bincount(ids, minlength=750)
    counts[[batches.special_ids[role] for role in ("pad", "cls", "sep", "mask")]] = 0
    measured = examine([healthy / "shards"], workers=1).measures[Measure.UNIGRAM_ENTROPY]
    assert measured == pytest.approx(entropy(counts), rel=1e-9)


def test_the_exit_code_is_1_only_for_what_is_serious(healthy, tmp_path, capsys):
    assert print_findings(examine([healthy / "shards"], workers=1)) == 0
    assert "Nothing wrong was found" in capsys.readouterr().out
    text = write(tmp_path / "letters.txt", [" ".join(document.replace(" ", "")) for document in prose(30)])
    assert print_findings(examine([text], workers=1)) == 1
    shown = capsys.readouterr().out
    assert "What to do" in shown
    assert "single letters" in shown


ENGLISH = """The old lighthouse stood at the end of the road, and it had been empty for years. When the storm came,
the keeper's daughter went up the stairs once more and lit the lamp, because she had seen a small boat far out between the
waves. In the morning three fishermen sat in her kitchen; they drank hot tea, and none of them said very much."""
GERMAN = """Der alte Leuchtturm stand am Ende der Straße, und seit Jahren hatte niemand mehr darin gewohnt. Als der Sturm kam,
stieg die Tochter des Leuchtturmwärters noch einmal die Treppe hinauf und zündete die Lampe an, denn sie hatte weit draußen
zwischen den Wellen ein kleines Boot gesehen. Am Morgen saßen drei Fischer in der Küche; die Wasserschutzpolizeidienststelle
und die Donaudampfschifffahrtsgesellschaft wussten von nichts."""
FINNISH = """Vanha majakka seisoi tien päässä, eikä siinä ollut asunut kukaan vuosikausiin. Kun myrsky tuli, majakanvartijan
tytär nousi vielä kerran portaat ylös ja sytytti lampun, sillä hän oli nähnyt kaukana aaltojen välissä pienen veneen. Aamulla
kolme kalastajaa istui keittiössä juomassa teetä, eikä kukaan heistä puhunut paljoakaan epäjärjestelmällisyydestään."""
CHINESE = """那座古老的灯塔矗立在路的尽头，已经很多年没有人住在里面了。暴风雨来临的时候，守塔人的女儿又一次爬上楼梯，
点亮了灯，因为她看见远处的波浪之间有一条小船。早晨，三个渔夫坐在她的厨房里，喝着热茶，谁也没有多说什么，只是望着窗外的大海。"""
JAPANESE = """古い灯台は道の終わりに立っていて、もう何年も誰も住んでいなかった。嵐が来たとき、灯台守の娘はもう一度階段を上り、
ランプに火をともした。遠くの波の間に小さな船が見えたからである。朝になると、三人の漁師が台所に座って熱いお茶を飲んでいた。"""
THAI = """ประภาคารเก่าตั้งอยู่ที่ปลายถนน และไม่มีใครอาศัยอยู่ในนั้นมาหลายปีแล้ว เมื่อพายุมาถึง ลูกสาวของคนเฝ้าประภาคารก็ขึ้นบันไดไปอีกครั้ง
และจุดตะเกียง เพราะเธอเห็นเรือลำเล็กอยู่ไกลออกไปท่ามกลางคลื่น ในตอนเช้าชาวประมงสามคนนั่งดื่มชาร้อนอยู่ในครัวของเธอ"""
HINDI = """पुराना प्रकाशस्तंभ सड़क के अंत में खड़ा था और बरसों से उसमें कोई नहीं रहता था। जब तूफ़ान आया, तो रखवाले की बेटी एक बार फिर
सीढ़ियाँ चढ़ी और उसने दीपक जलाया, क्योंकि उसने दूर लहरों के बीच एक छोटी नाव देखी थी। सुबह तीन मछुआरे उसकी रसोई में बैठे चाय पी रहे थे।"""
LANGUAGES = {
    name: text
    for name, text in globals().items()
    if name in ("ENGLISH", "GERMAN", "FINNISH", "CHINESE", "JAPANESE", "THAI", "HINDI")
}
ABOUT_WORDS = {  # what is said about the language itself, not about how much there is of it
    "too many words are single letters",
    "many words are unknown to the tokenizer",
    "most documents are very short",
    "much of the text is not prose",
    "much of the text is not made of words",
    "hardly a word occurs twice",
}


@pytest.mark.long
@pytest.mark.parametrize("language", LANGUAGES)
def test_healthy_prose_in_many_languages_is_left_in_peace(tmp_path, language):
    text = write(tmp_path / "text.txt", [LANGUAGES[language], LANGUAGES[language].replace("\n", " ")])
    assert titles(examine([text], workers=1)) == set()
    # a small vocabulary, else it learns whole sentences of so little text by heart
    train_tokenizer([text], vocab_size=250, min_frequency=3, out=tmp_path / "tokenizer", workers=1)
    found = examine([text], tokenizer=tmp_path / "tokenizer", workers=1)
    assert not titles(found) & ABOUT_WORDS, found.measures
    prepare([text], tokenizer=tmp_path / "tokenizer", length=64, out=tmp_path / "shards", workers=1)
    found = examine([tmp_path / "shards"], workers=1)
    assert not titles(found) & ABOUT_WORDS, found.measures


def random_letters(num_words: int, length: int) -> list[str]:
    letters = np.random.default_rng(0).choice(list("abcdefghijklmnopqrstuvwxyzABCDEFGHIJ"), (num_words, length))
    return ["".join(word) for word in letters.tolist()]


def test_letters_without_spaces_are_no_prose_in_text_and_in_shards(healthy, tmp_path):
    """As base64 without its digits: every character is a letter."""
    words = random_letters(num_words=600, length=76)
    text = write(tmp_path / "text.txt", ["\n".join(words[start : start + 20]) for start in range(0, len(words), 20)])
    found = examine([text], workers=1)
    assert "much of the text is not made of words" in titles(found) and found.is_serious
    prepare([text], tokenizer=healthy / "tokenizer", length=64, out=tmp_path / "shards", workers=1)
    found = examine([tmp_path / "shards"], workers=1)
    assert {"much of the text is not made of words", "the vocabulary does not fit the text"} <= titles(found)
    assert found.is_serious


def test_random_letters_with_spaces_are_no_prose(tmp_path):
    words = random_letters(num_words=6000, length=8)
    text = write(tmp_path / "text.txt", [" ".join(words[start : start + 50]) for start in range(0, len(words), 50)])
    found = examine([text], workers=1)
    assert titles(found) == {"hardly a word occurs twice"} and found.is_serious


def test_shards_of_tables_short_documents_and_copies_are_found(healthy, tmp_path):
    """What the doctor says about text, it says about the shards made of it."""
    table = ["\n".join(f"{row * 17} | {row * 31} | 0.{row} ;" for row in range(n * 40, n * 40 + 40)) for n in range(30)]
    short = [f"only number {number} here" for number in range(300)]
    for name, documents, title in (
        ("table", table, "much of the text is not prose"),
        ("short", short, "most documents are very short"),
        ("copies", prose(60) * 3, "rows occur several times"),
    ):
        text = write(tmp_path / f"{name}.txt", documents)
        prepare([text], tokenizer=healthy / "tokenizer", length=64, out=tmp_path / name, workers=1)
        assert title in titles(examine([tmp_path / name], workers=1)), name


def test_shards_measure_what_the_text_measures(healthy):
    """Words are put together again from their pieces."""
    of_text = examine([healthy / "text.txt"], tokenizer=healthy / "tokenizer", workers=1).measures
    of_shards = examine([healthy / "shards"], workers=1).measures
    for name, tolerance in (("tokens per word", 0.15), ("symbols and digits", 0.03), ("single-letter words", 0.03)):
        assert of_shards[name] == pytest.approx(of_text[name], abs=tolerance), name


@pytest.mark.parametrize("length", [61, 64])
def test_copies_are_counted_over_all_rows_not_over_a_sample(tmp_path, healthy, length):
    text = write(tmp_path / "text.txt", prose(100) + prose(50))
    prepare([text], tokenizer=healthy / "tokenizer", length=length, valid=0, out=tmp_path / "shards", workers=1)
    batches = Batches(tmp_path / "shards", 1, shuffle=False)
    rows = [batches(row).tobytes() for row in range(batches.num_rows)]
    measured = examine([tmp_path / "shards"], max_mb=1, workers=1).measures[Measure.DUPLICATE_ROWS]
    assert measured == pytest.approx(1 - len(set(rows)) / len(rows)) and measured > 0.05


def test_every_check_can_be_healthy_and_says_what_to_do():
    for check in CORPUS_CHECKS:
        is_low_bad = check.thresholds.is_low_bad
        assert check.thresholds.level(float("inf") if is_low_bad else 0) is None
        assert check.thresholds.level(0 if is_low_bad else max(1, check.thresholds.warning)) is not None
        assert check.means and check.advice


@pytest.mark.long
def test_limit_and_dedupe_count_for_the_doctor_too(tmp_path):
    text = write(tmp_path / "copies.txt", prose(40) * 2)
    assert examine([text], limit=5, workers=1).measures[Measure.DOCUMENTS] == 5
    assert examine([text], dedupe=True, workers=1).measures[Measure.DUPLICATE_DOCUMENTS] == 0
    assert examine([text], workers=1).measures[Measure.DUPLICATE_DOCUMENTS] == 0.5


def test_a_script_without_capitals_is_not_taken_for_single_letters(tmp_path):
    text = write(
        tmp_path / "chinese.txt", [" ".join("今天天气很好我们去公园散步吧") + f" {number}" for number in range(50)]
    )
    assert "too many words are single letters" not in titles(examine([text], workers=1))


def test_names_with_brackets_and_folders_with_a_manifest_of_their_own_are_no_trouble(tmp_path, capsys):
    folder = tmp_path / "x[" / "y]"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text('{"name": "a web app"}')
    write(folder / "text.txt", prose(30))
    print_findings(examine([folder], workers=1))
    assert "y]" in capsys.readouterr().out


def test_shards_are_examined_alone_and_with_their_own_tokenizer(healthy):
    with pytest.raises(UserError, match="examine it alone"):
        examine([healthy / "shards", healthy / "text.txt"], workers=1)
    with pytest.raises(UserError, match="without --tokenizer"):
        examine([healthy / "shards"], tokenizer=str(healthy / "tokenizer"), workers=1)


@pytest.mark.long
def test_standard_input_among_files_is_examined_to_the_end_of_the_sample(healthy, tmp_path):
    text = "\n\n".join(real_prose() * 4).encode()
    command = [
        sys.executable,
        "-m",
        "electrakit",
        "doctor",
        "-",
        str(healthy / "text.txt"),
        "--tokenizer",
        str(healthy / "tokenizer"),
        "--max-mb",
        "1",
    ]
    done = subprocess.run(command, input=text, capture_output=True)
    assert done.returncode in (0, 1), done.stderr.decode()  # 1: copies, as there are
    assert b"unigram entropy" in done.stdout


def test_a_corpus_with_nothing_in_it_is_a_clear_error(tmp_path):
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(UserError, match="no usable text"):
        examine([tmp_path / "empty.txt"], workers=1)


def test_what_was_seen_is_printed_as_it_is(capsys):
    """Brackets in it are no colours."""
    finding = Finding("warning", "a title", "seen in [/] and [red]", "it means [MASK]", "do [this]")
    print_findings(Examination("a [bold] name", {}, [finding]))
    said = capsys.readouterr().out
    assert all(words in said for words in ("a [bold] name", "seen in [/] and [red]", "it means [MASK]", "do [this]"))


@pytest.mark.parametrize(
    ("text", "num_tokens", "wanted"),
    [
        ("the quick brown fox " * 50, 20e6, "--kind wordpiece --vocab-size 30522"),
        ("the quick brown fox " * 50, 3e6, "--kind wordpiece --vocab-size 4000"),
        ("今日は天気がいい " * 50, 20e6, "--kind unigram --vocab-size 32000"),
        (
            "".join(map(chr, range(0x4E00, 0x4E00 + 3000))) * 3,
            200e6,
            "--kind unigram --vocab-size 128000 --max-alphabet 3000",
        ),
        (
            "".join(map(chr, range(0xAC00, 0xAC00 + 1500))) * 3,
            1e3,
            "--kind unigram --vocab-size 4000 --max-alphabet 1500",
        ),
        ("".join(map(chr, range(0x100, 0x480))) + "abc" * 99, 1e3, "--kind wordpiece --vocab-size 4000 --keep-accents"),
        ("el niño está aquí y mañana también ", 20e6, "--kind wordpiece --vocab-size 30522 --keep-accents"),
        (TEXTS["cyrillic"], 20e6, "--kind wordpiece --vocab-size 30522 --keep-accents"),
        (TEXTS["devanagari"], 20e6, "--kind unigram --vocab-size 32000"),
        (TEXTS["arabic"], 20e6, "--kind unigram --vocab-size 32000"),
        (TEXTS["thai"], 20e6, "--kind unigram --vocab-size 32000"),
    ],
)
def test_the_tokenizer_that_suits_a_text_is_named(text, num_tokens, wanted):
    from electrakit.doctor.tokenizer_advice import tokenizer_advice

    characters = Counter(text.replace(" ", ""))
    assert f"electra tokenizer {wanted} (" in tokenizer_advice(characters, 0.01, num_tokens)
    assert "--kind bpe" in tokenizer_advice(Counter("abc"), 0.2, num_tokens)
