"""Parts to documents: encodings, Gutenberg, Wikipedia, WikiExtractor, JSON, and whatever is broken in them."""

import bz2
import io
import json
import os
import re
import tarfile
import zipfile
from pathlib import Path

import pytest

from electrakit.common.errors import UserError
from electrakit.config.corpus import CorpusConfig
from electrakit.data.read import sources, wikipedia
from electrakit.data.read.formats import MAX_LINE_CHARACTERS
from electrakit.data.read.recognise import book_within

# real text, too large for the repository: beside the checkout, or wherever the variable says
SHARED = Path(os.environ.get("ELECTRAKIT_DATA") or Path(__file__).parents[4] / "shared" / "data")


def texts(documents):
    return ["\n".join(document.lines) for document in documents]


# --- encodings -------------------------------------------------------------------------------------------------------


def test_a_few_broken_bytes_in_utf_8_are_left_out_counted_and_placed_even_at_the_borders_of_parts(
    tmp_path, read_all, monkeypatch
):
    lines = [f"Line {number} of the naïve café" for number in range(200)]
    broken = [line.encode() for line in lines]
    broken[100] = b"\xff" + broken[100] + b"\xc3"
    broken[150] = b"plain \xe2\x80 words"
    (tmp_path / "a.txt").write_bytes(b"\n".join(broken))
    for piece_bytes in (20, 33, 1000, 2**20):
        monkeypatch.setattr(sources, "BATCH_BYTES", piece_bytes)
        documents, notes = read_all(tmp_path, documents="line")
        assert texts(documents) == [*lines[:150], "plain  words", *lines[151:]]
        assert notes.counts == {"broken bytes; left out": 4}
        assert notes.places["broken bytes; left out"][0] == f"{tmp_path / 'a.txt'}:101"


def test_windows_1252_is_recognised_in_every_part_of_a_file(tmp_path, read_all, monkeypatch):
    monkeypatch.setattr(sources, "BATCH_BYTES", 200)
    lines = [f"Line {number} of the “naïve” café – £{number}" for number in range(100)]
    (tmp_path / "a.txt").write_bytes("\n".join(lines).encode("cp1252"))
    documents, notes = read_all(tmp_path, documents="line")
    assert texts(documents) == lines
    assert list(notes.counts) == ["not UTF-8; read as Windows-1252"]


@pytest.mark.parametrize("encoding", ["koi8-r", "windows-1251", "shift_jis", "utf-16-le"])
def test_an_encoding_that_is_named_is_used_for_what_is_not_utf_8(tmp_path, read_all, encoding):
    text = "Все люди рождаются свободными.\n\nИ равными."
    (tmp_path / "a.txt").write_bytes(text.encode(encoding))
    (tmp_path / "b.txt").write_bytes(text.encode())
    documents, notes = read_all(tmp_path, encoding=encoding, source="text")
    assert texts(documents) == text.split("\n\n") * 2
    assert not notes.counts


@pytest.mark.parametrize("encoding", ["klingon", "rot13", "base64", "undefined", ""])
def test_an_encoding_that_is_not_known_is_an_error(tmp_path, encoding):
    with pytest.raises(UserError, match=r"--encoding .* is not known; name one such as koi8-r"):
        CorpusConfig(inputs=[tmp_path], encoding=encoding)


def test_nuls_are_left_out_and_counted(tmp_path, read_all):
    (tmp_path / "a.txt").write_bytes(b"one\n" * 50 + b"t\0w\0o")
    documents, notes = read_all(tmp_path, documents="line")
    assert texts(documents)[-1] == "two"
    assert notes.as_json() == {"NUL characters; left out": {"count": 2, "first": [f"{tmp_path / 'a.txt'}:51"]}}


def test_a_line_too_long_for_the_tokenizer_is_cut_between_words(tmp_path, read_all):
    text = "word " * MAX_LINE_CHARACTERS + "x" * (MAX_LINE_CHARACTERS + 10) + " end"
    (tmp_path / "a.txt").write_text(text)
    documents, notes = read_all(tmp_path)
    assert max(map(len, documents[0].lines)) <= MAX_LINE_CHARACTERS
    assert "".join(documents[0].lines).replace(" ", "") == text.replace(" ", "")
    assert " ".join(documents[0].lines).split()[:-3] == text.split()[:-2]
    assert list(notes.counts.values()) == [1]


# --- Gutenberg -------------------------------------------------------------------------------------------------------

BODY = "THE STORY\n\nIt was a dark night.\nNobody was awake.\n\nThe end came soon."
LICENCE = (
    "\n\nUpdated editions will replace the previous one. Project Gutenberg-tm is a trademark.\n" + "Terms. " * 2000
)
HEADERS = [
    "The Project Gutenberg EBook of X\n\nTitle: X\n\n*** START OF THE PROJECT GUTENBERG EBOOK X ***\n\n",
    "The Project Gutenberg EBook of X\n\n***START OF THE PROJECT GUTENBERG EBOOK X***\n\n",
    "Project Gutenberg's X, by Y\n\n*** START OF THIS PROJECT GUTENBERG EBOOK X ***\n\n",
    "Project Gutenberg's X, by Y\n\n*** START OF THIS PROJECT GUTENBERG EBOOK A TITLE THAT RUNS\nON AND ON ***\n\n",
    "**The Project Gutenberg Etext of X**\n" + "Legal words.\n" * 800
    + "*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*\n\n",
    "Project Gutenberg Etext\n\n*END THE SMALL PRINT! FOR PUBLIC DOMAIN EBOOKS*Ver.02/11/02*END*\n\n",
    "*** START OF THE PROJECT GUTENBERG EBOOK X ***\n\n",
    "",
]  # fmt: skip
FOOTERS = [
    "\n\n*** END OF THE PROJECT GUTENBERG EBOOK X ***" + LICENCE,
    "\n\n***END OF THE PROJECT GUTENBERG EBOOK X***" + LICENCE,
    "\n\nEnd of the Project Gutenberg EBook of X, by Y\n\n*** END OF THIS PROJECT GUTENBERG EBOOK X ***" + LICENCE,
    "\n\nEnd of Project Gutenberg's X,\nby Y\n\n*** END OF THIS PROJECT GUTENBERG EBOOK A TITLE THAT\nRUNS ON ***"
    + LICENCE,
    "\n\nEnd of The Project Gutenberg Etext of X,\nby Y\n",
    "\n\n*** END OF THE PROJECT GUTENBERG EBOOK X ***",
    "",
]


@pytest.mark.parametrize("footer", FOOTERS)
@pytest.mark.parametrize("header", HEADERS)
def test_gutenbergs_header_and_footer_are_cut(tmp_path, read_all, header, footer):
    text = header + BODY + footer
    start, end = book_within(text)
    assert text[start:end].strip() == BODY
    for newline in ("\n", "\r\n"):
        (tmp_path / "gutenberg").mkdir(exist_ok=True)
        (tmp_path / "gutenberg/A___X.txt").write_bytes(text.replace("\n", newline).encode())
        assert texts(read_all(tmp_path)[0]) == [re.sub("\n+", "\n", BODY)]


def test_three_underscores_in_a_name_mean_a_book_only_in_a_folder_of_books(tmp_path, read_all):
    for folder in ("mine", "Gutenberg/txt"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "my___notes.txt").write_text("one\ntwo\n")
    with zipfile.ZipFile(tmp_path / "gutenberg.zip", "w") as archive:
        archive.writestr("A___B.txt", "one\ntwo\n")
    assert texts(read_all(tmp_path / "mine", documents="line")[0]) == ["one", "two"]
    assert texts(read_all(tmp_path / "Gutenberg", documents="line")[0]) == ["one\ntwo"]
    assert texts(read_all(tmp_path / "gutenberg.zip", documents="line")[0]) == ["one\ntwo"]


def test_a_book_is_a_book_by_its_relative_name_too(read_all, tmp_path, monkeypatch):
    (tmp_path / "gutenberg").mkdir()
    (tmp_path / "gutenberg/A___B.txt").write_text("one\n\ntwo\n")
    monkeypatch.chdir(tmp_path / "gutenberg")
    assert len(read_all("A___B.txt")[0]) == len(read_all(tmp_path / "gutenberg/A___B.txt")[0]) == 1


@pytest.mark.parametrize("header", HEADERS)
def test_a_line_that_says_it_is_the_end_is_the_end_if_little_follows(header):
    text = f"{header}{BODY}\n\n*** END OF THE PROJECT GUTENBERG EBOOK X ***\n\nProduced by volunteers.\n"
    start, end = book_within(text)
    assert text[start:end].strip() == BODY


@pytest.mark.parametrize("header", HEADERS)
@pytest.mark.parametrize("footer", FOOTERS)
@pytest.mark.parametrize(
    "quote",
    [
        "*** START OF THE PROJECT GUTENBERG EBOOK X ***",
        "*** END OF THE PROJECT GUTENBERG EBOOK X ***",
        "End of the Project Gutenberg EBook of X",
        "*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS",
    ],
)
def test_a_book_that_quotes_such_a_line_keeps_its_text(header, footer, quote):
    story = "The story went on. " * 300
    body = f"{BODY}\n\n{story}\n\nHe read aloud:\n\n{quote}\n\nand closed the file.\n\n{story}"
    start, end = book_within(header + body + footer)
    assert (header + body + footer)[start:end].strip() == body.strip()


def test_a_book_is_one_document_from_a_folder_a_zip_or_a_file_in_any_encoding(tmp_path, read_all):
    body = "Un café, déjà vu,\n\nnaïve words – and “quotes”."
    encodings = {"utf-8": "1.txt", "utf-8-sig": "2.txt", "cp1252": "3.txt", "utf-16": "4.txt"}
    (tmp_path / "gutenberg").mkdir()
    with zipfile.ZipFile(tmp_path / "books.zip", "w") as archive:
        for encoding, name in encodings.items():
            data = (HEADERS[0] + body + FOOTERS[2]).encode(encoding)
            (tmp_path / "gutenberg" / name).write_bytes(data)
            archive.writestr(f"Gutenberg/txt/{name}", data)
        archive.writestr("Gutenberg/txt/A B___No Header.txt", "First.\n\nSecond.")
    (tmp_path / "gutenberg/A B___No Header.txt").write_text("First.\n\nSecond.")
    expected = [re.sub("\n+", "\n", body)] * 4 + ["First.\nSecond."]
    for name in ("gutenberg", "books.zip"):
        assert texts(read_all(tmp_path / name)[0]) == expected


@pytest.mark.skipif(not (SHARED / "text.tar.xz").exists(), reason="no text.tar.xz in ELECTRAKIT_DATA or ../shared/data")
@pytest.mark.long
def test_the_real_set_is_read_whole(tmp_path, read_all):
    documents, notes = read_all(SHARED / "text.tar.xz")
    assert len(documents) == 27_918
    assert notes.counts == {"not UTF-8; read as Windows-1252": 1}
    with tarfile.open(SHARED / "text.tar.xz") as archive:
        member = next(one for one in archive if "nonutf8/" in one.name and one.isfile())
        book = archive.extractfile(member).read().decode("latin-1")
    found = next(document for document in documents if "CONCORD AND MERRIMACK RIVERS." in document.lines)
    assert " ".join(found.lines).split() == book.split()


# --- Wikipedia -------------------------------------------------------------------------------------------------------


def page(title: str, text: str, ns: int = 0, extra: str = "") -> str:
    return (
        f"  <page>\n    <title>{title}</title>\n    <ns>{ns}</ns>\n    <id>1</id>{extra}\n    <revision>\n"
        f'      <text bytes="9" xml:space="preserve">{text}</text>\n    </revision>\n  </page>\n'
    )


HEAD = (
    '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" xml:lang="en">\n  <siteinfo>\n'
    "    <sitename>Wikipedia</sitename>\n  </siteinfo>\n"
)
DUMP = (
    HEAD
    + page("Cats &amp; dogs", "'''Cats''' and [[dog]]s are animals.\n\n== History ==\nThey have &lt;b&gt;long&lt;/b&gt; lived here.")
    + page("Talk:Cats", "Not an article at all.", ns=1)
    + page("Kitty", "#REDIRECT [[Cat]]", extra='\n    <redirect title="Cat" />')
    + page("Dogs", "Dogs bark at night.")
    + "</mediawiki>\n"
)  # fmt: skip
ARTICLES = ["Cats & dogs\nCats and dogs are animals.\nHistory\nThey have long lived here.", "Dogs\nDogs bark at night."]


@pytest.mark.parametrize("name", ["enwiki.xml", "enwiki.xml.bz2"])
def test_a_dump_gives_its_articles_with_their_titles(tmp_path, read_all, name):
    data = DUMP.encode()
    if name.endswith(".bz2"):  # multistream, as Wikimedia has it
        data = b"".join(bz2.compress(data[start : start + 300]) for start in range(0, len(data), 300))
    (tmp_path / name).write_bytes(data)
    documents, notes = read_all(tmp_path)
    assert texts(documents) == ARTICLES
    assert notes.as_json() == {
        "page that is no article; left out": {"count": 1, "first": [f"{tmp_path / name}:16"]},
        "page that redirects to another; left out": {"count": 1, "first": [f"{tmp_path / name}:24"]},
    }


def test_a_broken_page_is_left_out_named_and_alone(tmp_path, read_all):
    broken = page("Bad", "<unclosed>text").replace("</text>", "")
    unended = page("Cut", "some text").replace("</page>", "")
    text = HEAD + page("A", "First one.") + broken + unended + page("B", "Second &amp; last.\x0b") + "</mediawiki>"
    (tmp_path / "a.xml").write_text(text + page("C", "Third one.")[:-20])
    documents, notes = read_all(tmp_path)
    assert texts(documents) == ["A\nFirst one.", "B\nSecond & last."]
    places = {what: [int(where.rpartition(":")[2]) for where in found] for what, found in notes.places.items()}
    lines = text.split("\n")
    starts = [number for number, line in enumerate(lines, 1) if "<page>" in line]
    assert places == {
        "broken page; left out": [starts[1]],
        "page without its end; left out": [starts[2], len(lines)],
    }


@pytest.mark.parametrize("suffix", ["", ".bz2"])
def test_a_dump_that_ends_behind_a_page_is_noted(tmp_path, read_all, suffix):
    pages = [HEAD, page("A", "First one."), page("B", "Second one."), "</mediawiki>\n"]
    path = tmp_path / f"a.xml{suffix}"
    for num_streams in (2, 3, 4):
        streams = [part.encode() for part in pages[:num_streams]]
        path.write_bytes(b"".join(bz2.compress(one) if suffix else one for one in streams))
        documents, notes = read_all(tmp_path)
        assert len(documents) == min(num_streams - 1, 2)
        last_line = "".join(pages[:num_streams]).rstrip().count("\n") + 1
        expected = {"dump without an end; cut off?": [f"{path}:{last_line}"]} if num_streams < 4 else {}
        assert notes.places == expected


def test_pages_without_a_dump_around_them_need_no_end(tmp_path, read_all):
    (tmp_path / "a.xml").write_text(page("A", "First one."))
    documents, notes = read_all(tmp_path)
    assert texts(documents) == ["A\nFirst one."] and not notes.counts


def test_a_dump_whose_file_is_cut_off_is_noted_once(tmp_path, read_all):
    streams = [bz2.compress(part.encode()) for part in (HEAD, page("A", "First one."), page("B", "Second one."))]
    (tmp_path / "a.xml.bz2").write_bytes(b"".join(streams)[:-20])
    documents, notes = read_all(tmp_path)
    assert texts(documents) == ["A\nFirst one."]
    assert list(notes.counts) == ["compressed file is cut off; what came before is kept"]


def test_a_damaged_stream_of_a_dump_costs_its_own_pages_only(tmp_path, read_all):
    pages = [HEAD, *(page(name, f"The article {name}.") for name in "ABCD"), "</mediawiki>\n"]
    streams = [bytearray(bz2.compress(part.encode())) for part in pages]
    streams[2][1] ^= 1
    (tmp_path / "a.xml.bz2").write_bytes(b"".join(streams))
    documents, notes = read_all(tmp_path)
    assert [document.lines[0] for document in documents] == ["A", "C", "D"]
    assert list(notes.counts) == ["damaged part of a compressed file; left out"]


def test_an_article_that_upsets_the_parser_is_left_out_named_and_alone(tmp_path, read_all, monkeypatch):
    def upset(given):
        raise IndexError("as of the year 0")

    monkeypatch.setitem(wikipedia.TEMPLATES, "as of", upset)
    (tmp_path / "a.xml").write_text(HEAD + page("A", "In {{as of|0}}.") + page("B", "Second one.") + "</mediawiki>")
    documents, notes = read_all(tmp_path)
    assert texts(documents) == ["B\nSecond one."]
    assert notes.places == {"page that could not be read; left out": [f"{tmp_path / 'a.xml'}:5: as of the year 0"]}


def test_files_and_categories_have_the_names_that_the_dump_gives_them(tmp_path, read_all, monkeypatch):
    monkeypatch.setattr(sources, "BATCH_BYTES", 100)  # the head is far away from the second page
    namespaces = '<namespaces><namespace key="0" case="x" /><namespace key="6" case="x">Archivo</namespace>' + (
        '<namespace key="10" case="x">Plantilla</namespace><namespace key="14" case="x">Categoría</namespace></namespaces>'
    )
    text = "[[Archivo:a.jpg|thumb|Una foto]]Una [[cosa]].\n\n[[categoría:Cosas]]"
    dump = HEAD.replace("</siteinfo>", f"{namespaces}</siteinfo>") + page("A", text) + page("B", text) + "</mediawiki>"
    (tmp_path / "a.xml").write_text(dump)
    assert texts(read_all(tmp_path)[0]) == ["A\nUna cosa.", "B\nUna cosa."]


LAUGHS = '<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;"><!ENTITY c "&b;&b;&b;&b;">]>\n'


@pytest.mark.promise("Data", "XML bombs (DOCTYPE)", "refused")
@pytest.mark.parametrize("padding", [0, 3_000, 200_000, 2_000_000])
def test_xml_with_a_doctype_is_refused_wherever_it_stands(tmp_path, read_all, padding):
    comment = f"<!-- {'x' * padding} -->\n"
    for text in (
        f'<?xml version="1.0"?>{comment}{LAUGHS}{HEAD}{page("A", "&c;&c;")}</mediawiki>',
        f"{HEAD}{comment}{page('A', 'Hello there.')}{LAUGHS}{page('B', '&c;')}</mediawiki>",
    ):
        (tmp_path / "a.xml").write_text(text)
        documents, notes = read_all(tmp_path, source="wikipedia")
        assert not any("ha" in line for document in documents for line in document.lines)
        assert "XML with a DOCTYPE; refused from there on" in notes.counts


def test_the_pages_before_a_doctype_are_kept_and_its_line_is_named(tmp_path, read_all):
    text = f"{HEAD}{page('A', 'Hello there.')}{page('B', 'And here.')}{LAUGHS}{page('C', 'Not this.')}</mediawiki>"
    (tmp_path / "a.xml").write_text(text)
    documents, notes = read_all(tmp_path)
    assert texts(documents) == ["A\nHello there.", "B\nAnd here."]
    line = text[: text.index("<!DOCTYPE")].count("\n") + 1
    assert notes.places == {"XML with a DOCTYPE; refused from there on": [f"{tmp_path / 'a.xml'}:{line}"]}


@pytest.mark.long
@pytest.mark.skipif(
    not (SHARED / "enwiki-slice.xml.bz2").exists(),
    reason="no enwiki-slice.xml.bz2 in ELECTRAKIT_DATA or ../shared/data",
)
def test_the_real_dump_gives_its_articles(tmp_path, read_all):
    documents, notes = read_all(SHARED / "enwiki-slice.xml.bz2")
    assert len(documents) + notes.total == 206
    assert notes.counts == {"page that redirects to another; left out": 100}
    assert all(len(document.lines) > 1 for document in documents)


def test_both_forms_of_wikiextractor_give_the_same_documents(tmp_path, read_all):
    url = "https://en.wikipedia.org/wiki?curid="
    articles = {
        "Cats": "Cats &amp; dogs &lt;b&gt;live&lt;/b&gt; here.\n\nHistory.\nLong ago.",
        "A > B": "Text, 1 &lt; 2.",
    }
    (tmp_path / "doc").mkdir()
    (tmp_path / "json").mkdir()
    with (tmp_path / "doc/wiki_00").open("w") as doc, (tmp_path / "json/wiki_00").open("w") as lines:
        for number, (title, text) in enumerate(articles.items()):
            doc.write(f'<doc id="{number}" url="{url}{number}" title="{title}">\n{title}\n\n{text}\n\n</doc>\n')
            record = {"id": str(number), "revid": "1", "url": f"{url}{number}", "title": title, "text": text}
            lines.write(json.dumps(record) + "\n")
    documents, notes = read_all(tmp_path / "doc")
    assert texts(documents) == ["Cats\nCats & dogs  live  here.\nHistory.\nLong ago.", "A > B\nText, 1 < 2."]
    for form in ("doc", "json"):
        for source in (None, "wikiextractor"):
            assert read_all(tmp_path / form, source=source)[0] == documents
    assert not notes.counts


def test_records_without_text_are_counted_and_placed(tmp_path, read_all):
    url = "https://en.wikipedia.org/wiki?curid=1"
    records = [{"text": "one"}, {"text": ""}, {"text": " \n "}, {"title": "T", "url": url, "text": ""}, {"text": None}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, records)))
    documents, notes = read_all(tmp_path)
    assert texts(documents) == ["one"]
    where = f"{tmp_path / 'a.jsonl'}:"
    assert notes.places == {
        "document without text; left out": [f"{where}2", f"{where}3", f"{where}4"],
        "field 'text' is not text; left out": [f"{where}5"],
    }


def test_what_is_wrong_in_wikiextractors_output_is_noted(tmp_path, read_all):
    (tmp_path / "a").write_text('<doc id="1">\nA\n</doc>\nstray\n<doc id="2">\nB\n<doc id="3">\nC\n\n')
    documents, notes = read_all(tmp_path)
    assert texts(documents) == ["A", "B", "C"]
    assert notes.places == {
        "<doc> without its end; kept": [f"{tmp_path / 'a'}:5", f"{tmp_path / 'a'}:7"],
        "text outside of <doc>; left out": [f"{tmp_path / 'a'}:4"],
    }


@pytest.mark.promise("Data", "hostile markup", "linear time")
def test_hostile_markup_takes_linear_time(tmp_path, read_all):
    (tmp_path / "a").write_text('<doc id="1">\n' + "<doc " * 200_000 + "\n</doc>")
    assert len(read_all(tmp_path)[0]) == 1


# --- JSON ------------------------------------------------------------------------------------------------------------


def test_what_is_wrong_in_json_lines_is_counted_and_placed(tmp_path, read_all):
    lines = [
        '{"text": "good"}',
        "not json",
        '{"other": 1}',
        '{"text": 5}',
        '"text"',
        '{"text": ' + "[" * 100_000,
        '{"text": "cut off',
        '{"text": "odd\\u0000 \\ud800characters\\r\\nhere"}',
        '{"text": "last"}',
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    documents, notes = read_all(tmp_path)
    assert texts(documents) == ["good", "odd characters\nhere", "last"]
    assert {what: [int(where.rpartition(":")[2]) for where in places] for what, places in notes.places.items()} == {
        "line is not JSON; left out": [2, 6, 7],
        "record has no field 'text'; left out": [3, 5],
        "field 'text' is not text; left out": [4],
        "NUL characters; left out": [8],
        "broken bytes; left out": [8],
    }


@pytest.mark.parametrize("indent", [None, 0])
def test_a_json_list_of_records_is_read_too(tmp_path, read_all, indent):
    records = [{"text": "one"}, {"text": "two"}]
    separator = ",\n" if indent == 0 else ","
    (tmp_path / "a.json").write_text(
        "[" + "\n" * (indent == 0) + separator.join(map(json.dumps, records)) + "\n]"[indent is None :]
    )
    assert texts(read_all(tmp_path)[0]) == ["one", "two"]


@pytest.mark.parametrize("indent", [0, 2, "\t"])
def test_pretty_printed_json_is_read_as_one_value(tmp_path, read_all, indent):
    records = [{"id": 1, "text": "one\nline"}, {"text": "two é", "tags": ["x", {"y": []}]}]
    (tmp_path / "a.json").write_text(json.dumps(records, indent=indent))
    (tmp_path / "b.json").write_text(json.dumps(records[0], indent=indent))
    documents, notes = read_all(tmp_path)
    assert texts(documents) == ["one\nline", "two é", "one\nline"]
    assert not notes.counts


def test_json_lines_of_which_the_first_is_broken_are_still_read_line_by_line(tmp_path, read_all):
    (tmp_path / "a.jsonl").write_text('{"text": "cut o\n{"text": "two"}\n')
    documents, notes = read_all(tmp_path)
    assert texts(documents) == ["two"]
    assert notes.places == {"line is not JSON; left out": [f"{tmp_path / 'a.jsonl'}:1"]}


def test_json_lines_are_recognised_by_content_even_if_the_first_record_is_long(tmp_path, read_all):
    (tmp_path / "wiki_00").write_text(json.dumps({"id": "1", "text": "word " * 50_000}) + '\n{"text": "two"}\n')
    assert [len(document.lines[0]) for document in read_all(tmp_path)[0]][1:] == [3]


def test_a_file_in_a_zip_in_memory_keeps_its_place_in_notes(tmp_path, read_all):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("folder/a.jsonl", '{"text": "one"}\n{}\n')
    (tmp_path / "a.zip").write_bytes(file.getvalue())
    notes = read_all(tmp_path)[1]
    assert notes.places == {"record has no field 'text'; left out": [f"{tmp_path / 'a.zip'}:folder/a.jsonl:2"]}
