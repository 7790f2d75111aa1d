"""Expands those templates of Wikipedia that are part of a sentence into their words."""

import itertools
import re
from collections.abc import Callable


class Arguments(dict[str, str]):
    """A template's arguments as text: `given["1"]` is the first one without a name; "" where there is none."""

    def __missing__(self, name: str) -> str:
        return ""

    @property
    def unnamed(self) -> list[str]:
        """Arguments 1, 2, 3 ... up to the first that is missing."""
        numbers = itertools.takewhile(self.__contains__, map(str, itertools.count(1)))
        return [self[number] for number in numbers]


UNITS = {"C": "°C", "F": "°F", "K": "K", "sqmi": "sq mi", "sqkm": "km²", "km2": "km²", "m2": "m²", "ft2": "sq ft"} | {
    "sqft": "sq ft", "cuft": "cu ft", "km3": "km³", "m3": "m³", "cm3": "cm³", "impgal": "gallons", "USgal": "gallons",
    "mph": "mph", "km/h": "km/h", "ftin": "ft", "lb-f": "lbf", "long ton": "long tons", "acre": "acres",
}  # fmt: skip
RANGE_WORDS = {"-": "–", "–": "–", "to": " to ", "and": " and ", "or": " or ", "by": " by ", "x": " × ", "×": " × "} | {
    "xx": " × ", "+/-": " ± ", "±": " ± ",
}  # fmt: skip


def converted(given: Arguments) -> str:
    """{{convert|5|to|7|km|mi}}: what was measured, without the conversion."""
    words = given.unnamed
    measured, words = "".join(words[:1]), words[1:]
    while len(words) >= 2 and (between := words[0].removesuffix("(-)")) in RANGE_WORDS:
        measured += RANGE_WORDS[between] + words[1]
        words = words[2:]
    unit = words[0] if words else ""
    return f"{measured} {UNITS.get(unit, unit)}"


def value(given: Arguments) -> str:
    """{{val|6.241|e=18|u=m}}"""
    power, unit = given["e"], given["u"] or given["ul"]
    return given["1"] + (f"×10^{power}" if power else "") + (f" {unit}" if unit else "")


IS_MONTH = re.compile("0?[1-9]|1[0-2]")


def as_of(given: Arguments) -> str:
    year, month, day = given["1"], given["2"], given["3"]
    months = "January February March April May June July August September October November December".split()  # noqa: SIM905
    month = months[int(month) - 1] if IS_MONTH.fullmatch(month) else month
    words = ["as of" if given["lc"] else "As of", day, month, year]
    return given["alt"] or " ".join(word for word in words if word)


def fraction(given: Arguments) -> str:
    match given.unnamed:
        case [whole, above, below, *_]:
            return f"{whole} {above}/{below}"
        case [above, below]:
            return f"{above}/{below}"
        case _:
            return "1/" + given["1"]


def quotation(given: Arguments) -> str:
    return "\n" + (given["text"] or given["quote"] or given["1"]) + "\n"


def last_argument(given: Arguments) -> str:
    return "".join(given.unnamed[-1:])


def joined(given: Arguments) -> str:
    return "".join(given.unnamed)


# names and words; $1 is the first argument
WORDS: dict[str, str | Callable[[Arguments], str]] = {
    "convert|cvt|conv": converted,
    "val": value,
    "as of|asof": as_of,
    "frac|sfrac|fraction": fraction,
    "quote|blockquote|quotation|cquote|bquote|centered pull quote|quote box": quotation,
    "nowrap|nobr|nobreak|small|smaller|nobold|big|sc|smallcaps|sup|sub|pow|vr|linktext|tooltip|abbr|vanchor|keypress|"
    "visible anchor|not a typo|sic|ill|interlanguage link|illm|flag|flagcountry|flagu|em|strong|code|mono|kbd|samp|xt|tq|"
    "mvar|var|nihongo|nihongo2|nihongo3|gaps|underline|u|lsj|nastaliq|unicode|hebrew|polytonic|okina text|as written|"
    "proper name|noitalic|ship name|italics correction|nuclide|ety|gloss|bibleverse": "$1",
    "lang|script|font color|color|wikt-lang|resize": "$2",
    "transl|transliteration": last_argument,
    "chem|chem2|e notation": joined,
    "circa|c.|ca.": "c. $1",
    "floruit|fl.": "fl. $1",
    "uss": "USS $1",
    "hms": "HMS $1",
    "us$|usd|usdollar": "US$$1",
    "gbp|£": "£$1",
    "€|eur|euro": "€$1",
    "inr|₹": "₹$1",
    "angbr": "⟨$1⟩",
    "e": "×10^$1",
    "'": "'",
    "'s": "'s",
    "okina": "ʻ",
    "snd|spnd|spaced ndash|spaced en dash|dash": " – ",
    "ndash|en dash|–": "–",
    "mdash|em dash|—|mdashb": "—",
    "nbsp|space|spaces|thinsp|zwsp|·|•|sp|hsp": " ",
    "!|pipe|=": " ",
}
TEMPLATES = {name: words for names, words in WORDS.items() for name in names.split("|")} | {"|": " "}


def expand(name: str, given: Arguments) -> str:
    """The words of a template that is part of a sentence, "" for any other."""
    words = TEMPLATES.get(template_name(name), "")
    return re.sub(r"\$([12])", lambda found: given[found[1]], words) if isinstance(words, str) else words(given)


def template_name(text: str) -> str:
    """{{Lang-fr|...}} and {{lang-el|...}} hold their words in the first argument, as {{Nowrap|...}} does."""
    name = text.strip().replace("_", " ").lower()
    return "nowrap" if name.startswith("lang-") else name
