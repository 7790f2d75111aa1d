"""Settings: values that fit are taken and converted, those that do not are named; JSON, YAML, changes and rules."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from electrakit import presets
from electrakit.common.errors import UserError
from electrakit.config.base import Settings, VerbSettings, check_at_least, may_change, one_or_more, with_aliases
from electrakit.config.pretrain import PretrainConfig


@dataclass(frozen=True, kw_only=True)
class Wheel(Settings):
    size: float = 1.0
    colours: tuple[str, ...] = ()
    limits: tuple[int, int] = (0, 1)

    def check(self) -> None:
        check_at_least(0, self.values("size"))


@dataclass(frozen=True, kw_only=True)
class Car(Settings):
    name: str = "a"
    home: Path | None = may_change(None)
    fuel: Literal["petrol", "sun"] = with_aliases("sun", solar="sun")
    is_new: bool = True
    wheel: Wheel = field(default_factory=Wheel)
    spare: Wheel | None = None


@dataclass(frozen=True, kw_only=True)
class Drive(VerbSettings):
    to: tuple[str, ...] = one_or_more()
    max_speed: int = 100

    def check(self) -> None:
        check_at_least(1, self.values("max_speed"), "walk instead")


PLAIN = {
    "name": "b",
    "home": "garage",
    "fuel": "petrol",
    "is_new": False,
    "wheel": {"size": 2, "colours": ["red", "blue"], "limits": [3, 4]},
    "spare": None,
}
CAR = Car(
    name="b",
    home=Path("garage"),
    fuel="petrol",
    is_new=False,
    wheel=Wheel(size=2.0, colours=("red", "blue"), limits=(3, 4)),
)


def test_plain_values_become_what_the_annotations_say():
    assert Car.from_json(PLAIN) == Car(**PLAIN) == CAR
    assert Car.from_json({**PLAIN, "home": None}).home is None
    assert Car.from_json({**PLAIN, "wheel": Wheel()}).wheel == Wheel()  # what is one already, is taken
    assert Car(fuel="solar").fuel == "sun"
    assert Car(name=Path("x")).name == "x"
    assert type(Wheel(size=2).size) is int  # results on disk are known by their JSON
    assert Drive(to="work").to == Drive(to=iter(["work"])).to == ("work",)


def test_json_gives_back_the_same_settings_and_what_is_missing_has_its_default():
    assert CAR.to_json() == PLAIN
    assert Car.from_json({"spare": {"size": 3}}) == Car(spare=Wheel(size=3))
    assert Car.from_json({}) == Car()
    with pytest.raises(UserError, match=r"^to is missing; add it$"):
        Drive.from_json({"max_speed": 3})


def test_changes_by_mapping_reach_inside_and_leave_the_rest():
    assert CAR.changed() == CAR
    assert CAR.changed(name="c", wheel={"size": 5}) == Car(
        **{**PLAIN, "name": "c", "wheel": Wheel(size=5.0, colours=("red", "blue"), limits=(3, 4))}
    )
    assert CAR.changed(wheel=Wheel()).wheel == Wheel()
    assert CAR.name == "b" and CAR.wheel.size == 2.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nam": "c"}, r"^nam is an unknown setting; did you mean name\?$"),
        ({"wheel": {"sizes": 1}}, r"^wheel\.sizes is an unknown setting; did you mean wheel\.size\?$"),
        ({"wheel": {"x": 1}}, r"^wheel\.x is an unknown setting; there are size, colours, limits$"),
        ({"wheel": {"colours": "red"}}, r"^wheel\.colours must be a list of strings, got 'red'; write \['red'\]$"),
        ({"wheel": {"colours": [1]}}, r"^wheel\.colours must be a list of strings, got \[1\]$"),
        ({"wheel": {"limits": [1, 2, 3]}}, r"^wheel\.limits must be 2 numbers, got \[1, 2, 3\]$"),
        ({"wheel": {"size": float("inf")}}, r"^wheel\.size must be a number, got inf$"),
        ({"wheel": {"size": -1}}, r"^wheel\.size must be 0 or more, got -1$"),
        ({"spare": {"size": -1}}, r"^spare\.size must be 0 or more, got -1$"),
        ({"spare": 3}, r"^spare must be an object with size, colours, limits or None, got 3$"),
        ({"home": 3}, "^home must be a path or None, got 3$"),
        ({"fuel": "coal"}, "^fuel must be one of petrol, sun, got 'coal'$"),
        ({"is_new": 1}, "^is_new must be True or False, got 1$"),
    ],
)
def test_a_change_that_does_not_fit_names_the_setting_and_the_way_out(changes, message):
    for make in (CAR.changed, lambda **values: Car.from_json({**PLAIN, **values})):
        with pytest.raises(UserError, match=message):
            make(**changes)


def test_settings_of_a_verb_are_named_as_flags():
    with pytest.raises(UserError, match=r"^--max-speed must be 1 or more, got 0; walk instead$"):
        Drive(to=["work"], max_speed=0)
    with pytest.raises(UserError, match=r"^--max-speed must be a whole number, got '3'$"):
        Drive(to=["work"], max_speed="3")


def test_a_setting_that_may_change_is_no_part_of_the_identity():
    assert Car.changeable() == {"home"}
    assert CAR.identity() == CAR.changed(home="street").identity() != CAR.changed(name="c").identity()


YAML = """
name: b
wheel:
  size: 1e-3
  colours: [red]
"""


def test_a_file_may_be_json_or_yaml_with_changes_on_top(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(PLAIN))
    (tmp_path / "a.yaml").write_text(YAML)
    assert Car.from_file(tmp_path / "a.json", wheel={"size": 3}) == CAR.changed(wheel={"size": 3})
    read = Car.from_file(str(tmp_path / "a.yaml"), is_new=False, wheel={"limits": [1, 2]})
    assert read == Car(name="b", is_new=False, wheel=Wheel(size=1e-3, colours=("red",), limits=(1, 2)))
    (tmp_path / "drive.yml").write_text("max_speed: 3")
    assert Drive.from_file(tmp_path / "drive.yml", to="work") == Drive(to=("work",), max_speed=3)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("none.json", None, r"^cannot read .*none\.json: No such file"),
        ("half.json", "{", r"half\.json is not JSON: "),
        ("half.yaml", "a: [", r"half\.yaml is not YAML: "),
        ("list.yaml", "- a", r"list\.yaml: the settings must be an object with name, home, .* got \['a'\]"),
        (
            "wrong.yaml",
            "wheel: {sizes: 1}",
            r"wrong\.yaml: wheel\.sizes is an unknown setting; did you mean wheel\.size\?",
        ),
    ],
)
def test_a_bad_file_is_named(tmp_path, name, text, message):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=message):
        Car.from_file(tmp_path / name)


JSON = presets.electra_small().to_json()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({**JSON, "stepz": 3}, r"stepz is an unknown setting; did you mean steps\?"),
        ({**JSON, "optim": {**JSON["optim"], "colour": 3}}, r"optim\.colour is an unknown setting; there are name, lr"),
        ({**JSON, "steps": "many"}, "steps must be a whole number, got 'many'"),
        ({**JSON, "steps": True}, "steps must be a whole number, got True"),
        ({**JSON, "optim": {**JSON["optim"], "lr": float("nan")}}, r"optim\.lr must be a number, got nan"),
        ({**JSON, "optim": {**JSON["optim"], "betas": [0.9]}}, r"optim\.betas must be 2 numbers, got \[0\.9\]"),
        ({**JSON, "optim": 3}, "optim must be an object with name, lr, .*got 3"),
        ({**JSON, "compile": 1}, "compile must be True or False, got 1"),
        ({**JSON, "share": "all"}, "share must be one of nothing, gdes, embeddings, layers, encoder, got 'all'"),
        ([], "the settings must be an object with data, run, "),
    ],
)
def test_a_bad_json_names_the_setting_and_the_way_out(values, message):
    with pytest.raises(UserError, match=message):
        PretrainConfig.from_json(values)


@pytest.mark.parametrize("word", ["none", "None"])
def test_the_word_none_is_told_from_none(word):
    for preset in (presets.mini, presets.mlm_small):
        with pytest.raises(UserError, match=f"^generator .*got '{word}'; to have none, write generator=None"):
            preset(generator=word)
    with pytest.raises(UserError, match=r"^optim.max_grad_norm .*; to have none, write max_grad_norm=None, not a str"):
        presets.mini(optim={"max_grad_norm": word})
    assert str(presets.mini(run=word).run) == word  # a folder may be called so
