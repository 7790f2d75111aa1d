"""Plain text from wikitext: real constructs of Wikipedia articles, and text made to break a parser."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electrakit.data.read.wikipedia import prose
from electrakit.data.read.wikipedia_templates import TEMPLATES


def test_a_paragraph_is_one_line_and_markup_is_gone():
    wikitext = (
        "{{Use dmy dates}}\n'''Albedo''' (or ''reflection coefficient'', derived from [[Latin]] ''albedo''<ref name=a />)\n"
        "is the [[diffuse reflection|reflectivity]] of a surface.<ref>{{cite book|title=Light}}</ref><!-- really? -->\n\n"
        "It&nbsp;varies &ndash; R&amp;D shows [http://example.org/x how much] it varies, see http://example.org/y.\n"
    )
    assert prose(wikitext) == [
        "Albedo (or reflection coefficient, derived from Latin albedo) is the reflectivity of a surface.",
        "It varies – R&D shows how much it varies, see.",
    ]


@pytest.mark.parametrize(
    ("wikitext", "text"),
    {
        "nothing {{stub|{{deep|[[x|y]]}}}} left": "nothing left",
        "a<ref>one</ref> b<ref name='x'/> c<ref group=n>[[z]]</ref> d": "a b c d",
        "a<ref>never closed b<ref>c</ref> d": "a d",
        "[[File:a.jpg|thumb|A [[cat]] and [[dog|dogs]] [sic]]]Text [[Image:b.png]]here": "Text here",
        "[[Media:a.ogg|listen]]Sound": "Sound",
        "Text[[Category:Cats]]\n\n[[fr:Chat]]\n[[simple:Cat]] [[be-x-old:Кот]]\n[[zh-min-nan:Niau]]": "Text",
        "see [[CSI: Miami]], [[Re:Zero]], [[UFC: Undisputed]] and [[re:Zero]]": "see CSI: Miami, Re:Zero, UFC: Undisputed and re:Zero",
        "[[CSI: Miami]]": "CSI: Miami",
        "A [[:fr:Chat|French cat]] in [[:Category:Cats]]": "A French cat in Category:Cats",
        "[[Mercury (planet)|]] and [[Apollo#Cult|his cult]]": "Mercury and his cult",
        "one [[unclosed link and more": "one unclosed link and more",
        "before {{unclosed template|and its argument": "before",
        "E is <math>E=mc^2</math> if <math>m</math> is mass and <math>m > 0</math>": "E is if m is mass and m > 0",
        "a<gallery>\nFile:a.jpg|A\n</gallery>b": "ab",
        "a <source lang=c>int x;</source> b <syntaxhighlight>y</syntaxhighlight> c": "a b c",
        "a<timeline>ImageSize = 1</timeline> b": "a b",
        "write <nowiki>[[link]] ''so''</nowiki> here": "write [[link]] ''so'' here",
        "__NOTOC__ text __TOC__": "text",
        "one<br/>two<br>three<BR clear=all />four": "one two three four",
        "H<sub>2</sub>O, 10<sup>6</sup> km<sup>2</sup>, 19<sup>th</sup>": "H₂O, 10⁶ km², 19th",
        "<span style='color:red'>red</span> <small>small</small> <code>x</code> <unknown>tag</unknown>": "red small x tag",
        "'''''both''''' and l''''Étranger'''": "both and l'Étranger",
        "[//example.org relative] [http://example.org] [https://example.org/?a=b|c text]": "relative text",
        "{{{parameter|default}}} text": "text",
        "x &lt;b&gt; &#65; &hellip;": "x <b> A …",
    }.items(),
)
def test_constructs_leave_what_a_reader_reads(wikitext, text):
    assert prose(wikitext) == [text]


@pytest.mark.parametrize(
    ("wikitext", "text"),
    {
        "It is {{convert|72|km|mi|abbr=on}} long": "It is 72 km long",
        "from {{convert|55|to|80|cm|in}} or {{cvt|60|and(-)|80|kg}}": "from 55 to 80 cm or 60 and 80 kg",
        "an area of {{convert|5|sqmi|km2}} at {{convert|15|C|F}}": "an area of 5 sq mi at 15 °C",
        "({{lang|el|Ἀχιλλεύς}}, {{transl|el|Akhilleus}}, {{lang-la|albus}})": "(Ἀχιλλεύς, Akhilleus, albus)",
        "{{As of|2013|7}} and {{as of|2010|lc=on}}": "As of July 2013 and as of 2010",
        "{{as of|2020|0110}}, {{as of|2020|02}}, {{as of|2020|13}}": "As of 0110 2020, As of February 2020, As of 13 2020",
        "{{nowrap|[[New York|NY]] {{frac|1|2}}}} {{circa|1190}}": "NY 1/2 c. 1190",
        "dogs{{'}} tails{{snd}}long": "dogs' tails – long",
        "{{val|6.241|e=18|u=C}}": "6.241×10^18 C",
        "{{nihongo|'''Aikido'''|合気道|aikidō}} is": "Aikido is",
    }.items(),
)
def test_templates_that_are_part_of_the_sentence_keep_their_words(wikitext, text):
    assert prose(wikitext) == [text]


def test_a_quotation_of_several_paragraphs_stays_whole():
    assert prose("He wrote:\n{{quote|text=First line.\n\nSecond line.|author=Swift}}\nThe end.") == [
        "He wrote:",
        "First line. Second line.",
        "The end.",
    ]


def test_tables_go_nested_and_unclosed():
    assert prose("a\n{| class=x\n| one\n{|\n| two\n|}\n| three\n|}\nb") == ["a", "b"]
    assert prose("a\n{| class=x\n! h !! i\n|-\n| one || two\n\nAfter the table.") == ["a", "After the table."]
    assert prose(":{| \n| [[x|y]] {{z|\n}}\n|}\nb") == ["b"]


def test_an_infobox_whose_last_line_is_a_bar_closes():
    assert prose("{{Infobox\n|name=x\n|image=[[File:a.jpg]]\n|}}\nText.") == ["Text."]


def test_list_items_are_lines_and_paragraphs_are_joined():
    assert prose("* one\n** two\n# three\n:; four\na\nb\n\nc") == ["one", "two", "three", "four", "a b", "c"]


def test_block_tags_part_paragraphs():
    assert prose("a<blockquote>b</blockquote>c<p>d</p>") == ["a", "b", "c", "d"]


def test_programs_set_off_by_spaces_are_dropped_but_a_slip_is_kept():
    assert prose("As code:\n if x:\n   return y\nDone.\n\n A slip.\nEnd.") == ["As code:", "Done.", "A slip. End."]


def test_titles_are_lines_and_go_with_their_empty_sections():
    wikitext = (
        "Lead.\n== History ==\n=== ''Early'' years ===\nText.\n===Late===\n{{empty section}}\n== Empty ==\n{|\n|x\n|}\n"
    )
    assert prose(wikitext) == ["Lead.", "History", "Early years", "Text."]
    assert prose("Lead.\n==\nText.\n== , ==\nMore.") == ["Lead.", "Text.", "More."]


def test_tail_sections_hold_no_lists_of_links_or_books():
    wikitext = (
        "Lead.\n==See also==\n* [[Cat]]\n==References==\n{{reflist}}\n===Books===\n* Smith, J. ''Cats''. 1999.\n"
        "==Notes==\nThis note explains the spelling.\n==External links==\n* [http://example.org Site]\n==After==\n* Text"
    )
    assert prose(wikitext) == ["Lead.", "Notes", "This note explains the spelling.", "After", "Text"]


@pytest.mark.parametrize(
    ("wikitext", "text"),
    {
        "Aristotle ({{IPAc-en|x}}; {{lang-el|}}, ''{{x}}'') was": "Aristotle was",
        "Rome (; {{x}}) , Italy .": "Rome, Italy.",
        "Ada ({{x}}, born 1815 ; {{y}} )": "Ada (born 1815)",
        "One , two ,, three ; ; four": "One, two, three; four",
        "He said . . . and ... so on , at .22": "He said . . . and ... so on, at .22",
        "f(x) = [0, 1] (see above) :-)": "f(x) = [0, 1] (see above) :-)",
    }.items(),
)
def test_debris_of_what_was_cut_is_mended(wikitext, text):
    assert prose(wikitext) == [text]


def test_lines_of_punctuation_and_redirects_are_nothing():
    assert prose("—\n\n* {{x}}\n\n----\n\n. , ;\n\n( )") == []
    assert prose("#REDIRECT [[Cat]]") == prose("") == []


MARKUP = st.sampled_from(
    ["[[", "]]", "{{", "}}", "{{{", "}}}", "{|", "|}", "|", "!", "!!", "\n", "=", "==", "''", "'''", "*", "#", ":", ";", "&nbsp;",
     "&#0;", "&#x110000;", "&", "<", ">", "<b>", "</b>", "<ref>", "</ref>", "<ref/>", "<br>", "<math>", "</math>", "<nowiki>",
     "</nowiki>", "<!--", "-->", "[http://", "]", "http://a.b", "__TOC__", "{{nowrap|", "{{lang|fr|", "{{convert|", "{{quote|",
     "{{frac|", "{{as_of|2000|", "[[File:", "[[fr:", "(", ")", ",", ".", "\x00", "\ue000", "\u200b", "é", "漢", "word", "Word", "12"]
)  # fmt: skip


@pytest.mark.promise("Data", "random markup", "never an exception")
@settings(max_examples=400, deadline=None)
@given(st.one_of(st.text(), st.lists(st.one_of(MARKUP, st.text(max_size=3)), max_size=40).map("".join)))
def test_no_text_raises_and_every_line_is_clean(wikitext):
    for line in prose(wikitext):
        assert line == line.strip() and line
        assert "\n" not in line and "  " not in line
        assert any(character.isalnum() for character in line)


ARGUMENT = st.one_of(
    st.text(max_size=6), st.integers(-1, 10**6).map(str), st.sampled_from(["", "0110", "²", "to", "e=", "u=", "km", "1=", "lc=on"])
)  # fmt: skip


@settings(max_examples=20, deadline=None)
@given(st.lists(st.lists(ARGUMENT, max_size=6).map("|".join), min_size=len(TEMPLATES), max_size=len(TEMPLATES)))
def test_no_argument_of_a_kept_template_raises(arguments):
    for name, given_arguments in zip(TEMPLATES, arguments, strict=True):
        prose(f"Words {{{{{name}|{given_arguments}}}}} and words.")


def test_files_and_categories_go_in_any_language():
    wikitext = "[[Archivo:a.jpg|thumb|Una foto]]Una [[foto]].\n[[Categoría:Cosas]]"
    assert prose(wikitext, ("Archivo", "Categoría")) == ["Una foto."]


PATHOLOGICAL = (
    ["[[", "{{", "''", "{|", "{|\n", "{|\n|", "<b>", "[http://a ", "<ref>", "{{{", "[[a|", "==", "\n*", "&", "<", "{{a|", "{{lang|",
     "<div ", "<foo ", "<foo>", "<foo>\n", "[//", "__", "<!--", "( ,", "(", ", ", "; ", ":", "=", "http://", "{{convert|[[a|", "<math>",
     "[[File:a|", "<nowiki>", "{{nowrap|a}}", "\n{{nowrap|a\n", " a\n", "\n ", "\n", " ", "[", "'''''", "&lt;", "<sup>", "[[a]]", "]]",
     "[[fr:a]]", "[[fr:a", "\n[[fr:a]] "]
)  # fmt: skip


@pytest.mark.parametrize("piece", PATHOLOGICAL)
def test_time_stays_bounded_on_100_kb_of_unbalanced_markup(piece):
    start = time.process_time()
    prose(piece * (100_000 // len(piece)))
    assert time.process_time() - start < 10


@pytest.mark.parametrize(
    ("opener", "closer"), [("[[", "]]"), ("{{", "}}"), ("{{nowrap|", "}}"), ("<b>", "</b>"), ("<x>", "</x>")]
)
def test_deep_nesting_neither_raises_nor_takes_long(opener, closer):
    start = time.process_time()
    prose(opener * 10_000 + "text" + closer * 10_000)
    prose(opener * 100 + "text" + closer * 100)
    assert time.process_time() - start < 10
