"""The text of docstrings in Python source: the ways they are written, and what must be left out."""

import sysconfig
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import electrakit
from electrakit.data.read.docstrings import paragraphs, python_files

SENTENCE = "This is the first sentence of a text that anyone can read."
OTHER = "Here is another one, which is wrapped over two lines of the source."


def of(docstring: str) -> list[str]:
    return paragraphs(f"def f():\n    r'''{docstring}'''\n")


def test_docstrings_come_in_the_order_of_the_file():
    source = '''"""The module says what it is for and how it is used."""
if True:
    class A:
        """The class holds a few things that belong to each other."""
        attribute = 1
        """The attribute has a text of its own, as some tools allow."""
        async def method(self):
            """The method does what its name says, and nothing else."""
            def inner():
                """The inner function is where the work is really done."""
        x = """This is a string and not at all a text about the program."""
add_docstr(A, """The text is attached to the class after it has been made.""")
'''
    assert [text.split()[1] for text in paragraphs(source)] == [
        "module",
        "class",
        "attribute",
        "method",
        "inner",
        "text",
    ]


def test_wrapped_lines_are_one_paragraph():
    assert of(f"{SENTENCE}\n\n    Here is another one, which is\n    wrapped over two lines of the source.\n    ") == [
        SENTENCE,
        OTHER,
    ]


@pytest.mark.parametrize(
    "notation",
    [
        ">>> print('This is the output of a program that we can run.')\nThis is the output of a program that we can run.",
        "Code::\n\n    This is the code of a program that we can run.\n",
        "```python\nThis is the code of a program that we can run.\n```",
        ".. math::\n\n    This is the text of a formula that is not to be read.",
        ".. versionadded:: 1.2\n   This is the version in which it was added to the library.",
        "This is the title of a section that is long enough.\n---------------------------------------------------",
        "+-----+-----+\n| This is the cell of a table that is not to be read. |\n+-----+-----+",
        "This is     the row     of a table     that is     not to be     read as text.",
        "spam(this, that='the', other=None, *args) -> the value of the call.",
        "x : int, optional, and the name of the type of the value.",
        ":type x: the name of the type of the value that is given.",
        "The value is $x^2$ for all of the values that are in the set.",
        "The value is :math:`\\alpha + 1` for all of the values that are in the set.",
        "It is the one that is described in [1]_ and in the text.",
        "See https://example.org for all of the things that are not in this text.",
        "Too short to be a text.",
        "this does not begin as a sentence does, and so it is not one.",
        "This does not end as a sentence does, and so it is not one",
        "Foo Bar Baz Qux, Spam Eggs Ham, Alice Bob Carol Dave Eve.",
        "Dies ist ein ganzer Satz in einer Sprache, die nicht englisch ist.",
    ],
)
def test_notation_is_dropped_and_the_prose_around_it_is_kept(notation):
    inside = "\n    ".join(
        f"{SENTENCE}\n\n{notation}\n\nHere is another one, which is wrapped\nover two lines of the source.".split("\n")
    )
    assert of(inside) == [SENTENCE, OTHER]


@pytest.mark.parametrize(
    ("marked", "text"),
    {
        "The :class:`~foo.bar.Bar` is what attr:`run` gives to you in the end.": "The Bar is what run gives to you in the end.",
        "See :ref:`the user guide <guide>` for all that there is to know.": "See the user guide for all that there is to know.",
        "The ``value`` of `name` is *not* the same as the **other** one is.": "The value of name is not the same as the other one is.",
        "Read `the paper <https://example.org>`_ if you want to know why this is so.": "Read the paper if you want to know why this is so.",
        "Read [the paper](https://example.org/a) or [`~foo.Bar`] if you want to know.": "Read the paper or Bar if you want to know.",
        "This has been known for a long time [1]_, as everyone can see.": "This has been known for a long time, as everyone can see.",
        "This is <b>bold</b> and it is (https://example.org) to be read as it stands.": "This is bold and it is to be read as it stands.",
    }.items(),
)
def test_markup_is_replaced_by_what_it_shows(marked, text):
    assert of(marked) == [text]


@pytest.mark.parametrize(
    "entry",
    [
        "Args:\n        name (`int`, *optional*, defaults to 3): {}",
        "Args:\n        name (`int`):\n            {}",
        "Parameters\n    ----------\n    name : int, optional\n        {}",
        ":param name: {}",
        ":param int name:\n        {}",
        "@param name: {}",
        "- {}",
        "1. {}",
        ".. note:: {}",
        ".. note::\n\n       {}",
        "Returns:\n        {}",
    ],
)
def test_a_description_that_is_a_sentence_is_kept_without_its_name(entry):
    assert of(entry.format(SENTENCE)) == [SENTENCE]
    assert of(entry.format("the name")) == []


def test_entries_are_not_run_together():
    assert of(
        f"Args:\n        first: {SENTENCE}\n        "
        "second (int): Here is another one, which is\n            wrapped over two lines of the source.\n"
    ) == [SENTENCE, OTHER]


def test_a_paragraph_is_kept_up_to_what_is_not_prose():
    assert of(f"{SENTENCE} {OTHER} Then x[0] == y, e.g. in the way that was shown.") == [f"{SENTENCE} {OTHER}"]


@pytest.mark.parametrize(
    "source",
    [
        "",
        "def (",
        '"""\x00"""',
        '"""unclosed',
        "(" * 10_000 + '"""',
        "-" * 100_000 + '1\n""""""',
        '"""' + "x " * 3_000_000 + '"""',
    ],
)
def test_broken_source_has_no_paragraphs(source):
    assert paragraphs(source) == []


def test_nothing_is_run_or_imported():
    assert paragraphs(f'"""{SENTENCE}"""\nimport no_such_module\nraise SystemExit\n') == [SENTENCE]


def test_a_doubtful_escape_does_not_warn(recwarn):
    assert paragraphs(f'"""{SENTENCE}"""\nx = "\\d"\n') == [SENTENCE]
    assert not recwarn


PIECES = st.sampled_from(
    [*"`*_[]()<>:.-=|$\\~@", "``", "**", "::", ">>> ", "```\n", "\n", "\n\n", "\n    ", "\n        ", "----\n", ".. note:: ",
     ".. x::\n", ":param x: ", "Args:\n", "x : int\n", "name (int): ", "- ", "1. ", ":class:`", "`_", "[1]_", "http://a.b",
     "<b>", "the ", "is of a ", "Word ", "end.", SENTENCE]
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(PIECES, st.text(max_size=3)), max_size=40).map("".join))
def test_no_docstring_raises_and_every_paragraph_is_a_line(docstring):
    for text in paragraphs(repr(docstring) + '\n""""""'):
        assert text == " ".join(text.split())
        assert len(text.split()) >= 8


@settings(max_examples=100, deadline=None)
@given(st.text())
def test_no_source_raises(text):
    paragraphs(text + '"""')


@pytest.mark.parametrize(
    "piece",
    [
        "`",
        "*",
        "[",
        "<",
        "(",
        "a ",
        ":",
        ".",
        "the ",
        "a, ",
        "x.",
        "[1]",
        "``a``",
        ":a:`b` ",
        "- ",
        "A. ",
        "    ",
        "\n",
        "\n - ",
    ],
)
def test_time_stays_bounded_on_long_docstrings(piece):
    start = time.process_time()
    paragraphs(repr("A" + piece * (50_000 // len(piece)) + " end.") + '\n""""""')
    assert time.process_time() - start < 5


def test_files_are_of_this_installation_in_a_fixed_order():
    files = python_files()
    assert files == python_files() and len(files) == len(set(files))
    assert Path(sysconfig.get_path("stdlib"), "argparse.py") in files
    roots = [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib")]
    relative = [[file.relative_to(root).parts for file in files if file.is_relative_to(root)] for root in roots]
    assert relative[1] == sorted(relative[1])
    folders = {part for parts in relative[1] for part in parts[:-1]}
    assert not folders & {"test", "tests", "idlelib", "lib2to3", "electrakit"}
    own = Path(electrakit.__file__).parent
    assert not any(file.is_relative_to(own) for file in files)


@pytest.mark.long
def test_the_standard_library_reads_like_prose():
    files = [file for file in python_files() if file.parent == Path(sysconfig.get_path("stdlib"))][::8]
    found = [text for file in files for text in paragraphs(file.read_text(encoding="utf-8", errors="replace"))]
    words = " ".join(found).lower().split()
    assert len(found) > 100
    assert 0.04 < words.count("the") / len(words) < 0.15  # 6% in English at large
