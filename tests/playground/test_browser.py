"""The playground in a real browser: what a person does, sees, and is told."""

import contextlib
import re

import pytest

from electrakit.playground.server import open_pairs
from tests.helpers.browser import chromium as chromium
from tests.helpers.playground import playing
from tests.helpers.processes import HANG
from tests.helpers.tiny_pairs import VOCABULARY, write_discriminator, write_generator, write_pair

TEXT = "The café owner plays golf, unhappily!"
PHONE = {"width": 360, "height": 740}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    other = write_pair(folder / "other", vocabulary=[*VOCABULARY, "unhappily"], seed=5)
    return open_pairs([write_pair(folder / "mine"), other])


@contextlib.contextmanager
def opened(chromium, address, **settings):
    """A page without errors that sends requests to its own server only. Nothing in it moves: what is there is there at once."""
    context = chromium.new_context(reduced_motion="reduce", **settings)
    page = context.new_page()
    page.set_default_timeout(HANG * 1000)
    page.complaints, page.asked = [], []
    page.on(
        "console",
        lambda message: page.complaints.append(message.text) if message.type in ("error", "warning") else None,
    )
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.on("request", lambda request: page.asked.append(request.url))
    page.goto(address)
    page.wait_for_selector("#read button.token")
    yield page
    context.close()
    assert page.complaints == []
    assert all(url.startswith((address, "data:")) for url in page.asked)


@pytest.fixture(scope="module")
def address(pairs):
    with playing(pairs[:1]) as address:
        yield address


@pytest.fixture
def page(chromium, address):
    with opened(chromium, address) as page:
        yield page


def write(page, text):
    with page.expect_response("**/api/tokens"):
        page.fill("#text", text)
    page.wait_for_function("() => !document.querySelector('#status').classList.contains('busy')")


def tokens(page, reading=0):
    return page.locator(".reading").nth(reading).locator("button.token .text").all_text_contents()


def test_typing_colours_every_token_by_its_probability(page, pairs):
    page.fill("#text", "")
    with page.expect_response("**/api/tokens"):
        page.type("#text", TEXT, delay=5)
    page.wait_for_function("() => document.querySelectorAll('#read button.token').length === 10")
    assert "".join(tokens(page)) == TEXT.replace(" ", "")
    scores = pairs[0].replaced(pairs[0].encode(TEXT).ids)[1:-1]
    shown = page.locator("#read button.token .number").all_text_contents()
    assert [int(number) for number in shown] == pytest.approx([100 * score for score in scores], abs=0.51)
    heats = page.locator("#read button.token").evaluate_all(
        "all => all.map(one => Number(one.style.getPropertyValue('--p')))"
    )
    assert heats == pytest.approx(scores, abs=1e-3)
    painted = page.locator("#read button.token").evaluate_all(
        "all => all.map(one => getComputedStyle(one).backgroundColor)"
    )
    assert len(set(painted)) > 3  # not one colour for all
    joined = page.locator("#read button.token.joins .text").all_text_contents()
    assert joined == ["happi", "ly"]  # pieces of one word
    assert re.fullmatch(
        r"owner, [\d.]+ % replaced", page.locator("#read button.token").nth(2).get_attribute("aria-label")
    )


def test_a_prediction_can_be_put_in_and_taken_back(page, pairs):
    write(page, TEXT)
    page.locator("#read button.token").nth(2).click()
    page.wait_for_selector(".prediction")
    best = pairs[0].predictions(pairs[0].encode(TEXT), 2).best
    assert page.locator(".prediction").evaluate_all("all => all.map(one => one.dataset.token)") == [
        one.token for one in best
    ]
    number, prediction = next(
        (number, one) for number, one in enumerate(best) if one.token.isalpha() and one.token != "owner"
    )
    with page.expect_response("**/api/tokens"):
        page.locator(".prediction").nth(number).click()
    assert page.input_value("#text") == prediction.text
    page.wait_for_function(
        f"() => document.querySelectorAll('#read button.token .text')[2].textContent === '{prediction.token}'"
    )
    assert page.locator("#predictions").is_hidden()
    with page.expect_response("**/api/tokens"):
        page.click("#undo")
    assert page.input_value("#text") == TEXT and page.locator("#undo").is_disabled()


def test_everything_can_be_done_with_the_keyboard(page):
    write(page, TEXT)
    page.locator("#read button.token").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.wait_for_selector(".prediction")
    assert page.locator("#predictions-title").text_content() == "café"
    page.keyboard.press("ArrowDown")
    assert page.evaluate("() => document.activeElement === document.querySelectorAll('.prediction')[1]")
    page.keyboard.press("Escape")
    assert page.locator("#predictions").is_hidden()
    assert page.evaluate("() => document.activeElement.textContent").startswith("café")
    page.keyboard.press("Enter")
    page.wait_for_selector(".prediction")
    with page.expect_response("**/api/tokens"):
        page.keyboard.press("Enter")
    assert page.input_value("#text") != TEXT
    page.wait_for_function("() => !document.querySelector('#status').classList.contains('busy')")
    assert (
        page.evaluate("() => [...document.querySelectorAll('#read button.token')].indexOf(document.activeElement)") >= 0
    )
    with page.expect_response("**/api/tokens"):
        page.keyboard.press("Control+z")
    assert page.input_value("#text") == TEXT
    page.focus("#tab-read")
    page.keyboard.press("ArrowRight")
    assert page.locator("#game").is_visible() and page.locator("#read").is_hidden()


def test_a_round_of_the_game_is_played_and_counted(page, pairs):
    write(page, TEXT)
    page.click("#tab-game")
    page.fill("#rate", "40")
    page.fill("#seed", "3")
    page.click("#corrupt")
    page.wait_for_selector("#stage button")
    pair = pairs[0]
    played = pair.corrupt(pair.encode(TEXT), 0.4, 1.0, 3)
    assert page.locator("#stage .text").all_text_contents() == [part.strip() for part in pair.spell(played.corrupted)]
    assert page.locator("#stage .replaced, #stage .was").count() == 0  # nothing is given away
    truth = [place for place, changed in enumerate(played.is_replaced[1:-1]) if changed]
    others = [place for place in range(10) if place not in truth]
    assert len(truth) >= 2
    for place in (truth[0], truth[1], others[0], others[1]):
        page.locator("#stage button").nth(place).click()
    page.locator("#stage button").nth(others[1]).click()  # on second thought
    assert "marked 3" in page.locator("#marked").text_content()
    page.click("#show")
    assert page.locator("#stage .replaced").count() == len(truth)
    originals = [pair.spelling.word(pair.encode(TEXT).tokens[place].token) for place in truth]
    assert page.locator("#stage .was").all_text_contents() == [f"was {word}" for word in originals]
    scores = pair.replaced(played.corrupted)[1:-1]
    marked = {place for place, score in enumerate(scores) if score >= 0.5}
    you, model = page.locator(".score").all_text_contents()
    assert f"2 of {len(truth)} found" in you and "1 false alarm" in you and "1 point after 1 round" in you
    assert f"{len(marked & set(truth))} of {len(truth)} found" in model
    assert f"{len(marked - set(truth))} false alarm" in model
    page.click("#show")  # the next round
    page.wait_for_function("() => document.querySelector('#show').textContent === 'Show the answer'")
    assert page.input_value("#seed") == "4"
    page.click("#show")
    assert "after 2 rounds" in page.locator(".score").first.text_content()
    page.fill("#text", "golf")
    assert page.locator("#stage button").count() == 0  # that round was about another text


def test_a_round_about_a_text_that_has_changed_meanwhile_is_not_shown(page):
    page.click("#tab-game")
    page.evaluate(
        """() => {
            const [corrupt, text] = ["corrupt", "text"].map((id) => document.getElementById(id));
            corrupt.click();
            text.value = "another text";
            text.dispatchEvent(new Event("input"));
        }"""
    )
    page.wait_for_function("() => document.getElementById('game-note').textContent.includes('has changed')")
    assert page.locator("#stage button").count() == 0 and page.locator("#corrupt").is_enabled()


def test_as_many_marks_as_the_person_is_a_fair_game(page):
    write(page, TEXT)
    page.click("#tab-game")
    page.select_option("#rule", "same")
    page.click("#corrupt")
    page.wait_for_selector("#stage button")
    page.locator("#stage button").first.click()
    page.click("#show")
    found, alarms = re.search(r"(\d) of \d found(\d) false", page.locator(".score").nth(1).text_content()).groups()
    assert int(found) + int(alarms) == 1


def test_a_star_is_for_points_above_nothing_and_above_the_others(page, pairs):
    write(page, TEXT)
    page.click("#tab-game")
    page.select_option("#rule", "same")
    page.fill("#rate", "40")
    page.fill("#seed", "3")
    pair = pairs[0]
    is_replaced = pair.corrupt(pair.encode(TEXT), 0.4, 1.0, 3).is_replaced[1:-1]
    right = [place for place, changed in enumerate(is_replaced) if changed]
    for marked in ([], [is_replaced.index(False)], right):
        page.click("#corrupt")
        page.wait_for_function("() => document.querySelector('#show').textContent === 'Show the answer'")
        for place in marked:
            page.locator("#stage button").nth(place).click()
        page.click("#show")
        cards = page.locator(".score").all_text_contents()
        counts = [re.search(r"(\d+) of \d+ found(\d+) false", text).groups() for text in cards]
        you, model = points = [int(found) - int(alarms) for found, alarms in counts]
        assert you == {0: 0, 1: -1}.get(len(marked), len(right)) and len(right) > 1
        wins = page.locator(".score").evaluate_all("all => all.map(one => one.classList.contains('wins'))")
        assert wins == [one > 0 and points.count(one) == 1 and one == max(points) for one in points]
    assert wins == [True, False] or you == model


def test_markup_that_is_typed_is_text(page):
    hostile = "<script>window.owned = 1</script><img src=x onerror=window.owned=1>"
    write(page, hostile)
    page.wait_for_function("() => document.querySelectorAll('#read button.token').length > 10")
    assert "".join(tokens(page)) == hostile.replace(" ", "")
    assert page.evaluate("() => window.owned") is None and page.locator(".line img, .line script").count() == 0


def test_text_that_is_too_long_is_said(page):
    write(page, "golf " * 80)
    notice = page.locator(".reading .notice")
    assert "reads 62 tokens: the last 18" in notice.text_content() and notice.is_visible()
    write(page, "golf " * 900)
    page.wait_for_selector("#error:visible")
    assert "4,500 characters; at most 4,000" in page.locator("#error").text_content()
    write(page, TEXT)
    page.wait_for_selector("#error", state="hidden")
    # the browser's own note of the refusal
    page.complaints[:] = [line for line in page.complaints if "413" not in line]


def test_a_server_that_has_gone_is_said(chromium, pairs):
    with contextlib.ExitStack() as stack:
        running = contextlib.ExitStack()
        address = running.enter_context(playing(pairs[:1]))
        page = stack.enter_context(opened(chromium, address))
        running.close()
        page.fill("#text", "golf")
        page.wait_for_selector("#error:visible")
        assert "server does not answer" in page.locator("#error").text_content()
        assert all("ERR_" in line for line in page.complaints)  # the browser's own
        page.complaints.clear()


def test_two_models_read_the_same_text_side_by_side(chromium, pairs):
    with playing(pairs) as address, opened(chromium, address, viewport={"width": 1200, "height": 900}) as page:
        write(page, TEXT)
        boxes = [page.locator(".reading").nth(number).bounding_box() for number in range(2)]
        assert boxes[0]["y"] == boxes[1]["y"] and boxes[0]["x"] < boxes[1]["x"]
        assert tokens(page, 0)[-4:] == ["un", "happi", "ly", "!"] and tokens(page, 1)[-2:] == ["unhappily", "!"]
        page.locator(".reading").nth(1).locator("button.token").nth(6).click()
        page.wait_for_selector(".prediction")
        with page.expect_response("**/api/tokens"):
            page.locator(".prediction").first.click()
        page.wait_for_function("() => !document.querySelector('#status').classList.contains('busy')")
        assert "".join(tokens(page, 0)) == "".join(tokens(page, 1)) != TEXT.replace(" ", "")
        page.click("#tab-game")
        page.select_option("#player", "1")
        page.click("#corrupt")
        page.wait_for_selector("#stage button")
        page.click("#show")
        assert page.locator(".score h3").all_text_contents() == ["You", "mine", "other"]


@pytest.mark.parametrize("kind", ["discriminator", "generator"])
def test_what_half_a_pair_cannot_do_is_said_with_the_reason(chromium, tmp_path, kind):
    make = write_discriminator if kind == "discriminator" else write_generator
    with playing(open_pairs([make(tmp_path / kind)])) as address, opened(chromium, address) as page:
        write(page, TEXT)
        page.locator("#read button.token").first.click()
        if kind == "discriminator":
            assert "takes a generator" in page.locator("#predictions .note").text_content()
            page.keyboard.press("Escape")
            page.click("#tab-game")
            assert page.locator("#corrupt").is_disabled()
            assert "needs a generator" in page.locator("#game-note").text_content()
        else:
            page.wait_for_selector(".prediction")
            page.keyboard.press("Escape")
            assert "no discriminator" in page.locator(".reading .notice").text_content()
            assert set(page.locator("#read .number").all_text_contents()) == {"·"}
            page.click("#tab-game")
            page.click("#corrupt")
            page.wait_for_selector("#stage button")
            page.click("#show")
            assert page.locator(".score").count() == 1  # the person plays alone


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_on_a_phone_in_light_and_dark(chromium, pairs, scheme):
    def fits() -> bool:
        return page.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")

    with playing(pairs) as address, opened(chromium, address, viewport=PHONE, color_scheme=scheme) as page:
        write(page, "a" * 90 + " " + TEXT * 3 + " golf/" * 10)
        assert fits()
        write(page, "un" + "happi" * 15 + "!" * 30)  # one word, and what sticks to it
        assert fits()
        ground, ink = page.evaluate(
            "() => [getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
        )
        brightness = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in (ground, ink)]
        assert (brightness[0] > brightness[1]) == (scheme == "light")
        write(page, TEXT)
        rows = page.locator("#read button.token").evaluate_all("all => all.map(one => one.getBoundingClientRect().top)")
        assert rows[6] == rows[7] == rows[8]  # wherever the line breaks: the pieces of a word stay together
        page.locator("#read button.token").nth(2).click()
        page.wait_for_selector(".prediction")
        assert fits()
        sheet, token = (
            page.locator("#predictions").bounding_box(),
            page.locator("#read button.token").nth(2).bounding_box(),
        )
        assert 0 <= token["y"] < sheet["y"]  # both are in sight
        page.keyboard.press("Escape")
        page.click("#tab-game")
        page.click("#corrupt")
        page.wait_for_selector("#stage button")
        page.click("#show")
        assert fits()
        page.click("#theme")
        assert page.evaluate("() => document.documentElement.dataset.theme") != scheme
