"""Plain values read as dataclasses: what fits is taken, what does not is named."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from electrakit import presets
from electrakit.errors import UserError
from electrakit.pretrain_config import from_json, to_json
from electrakit.values import change_fields, read_value


@dataclass(frozen=True)
class Wheel:
    size: float = 1.0
    colours: tuple[str, ...] = ()
    limits: tuple[int, int] = (0, 1)


@dataclass(frozen=True)
class Car:
    name: str = "a"
    home: Path | None = None
    fuel: Literal["petrol", "sun"] = "sun"
    is_new: bool = True
    wheel: Wheel = field(default_factory=Wheel)


PLAIN = {
    "name": "b",
    "home": "garage",
    "fuel": "petrol",
    "is_new": False,
    "wheel": {"size": 2, "colours": ["red", "blue"], "limits": [3, 4]},
}
CAR = Car("b", Path("garage"), "petrol", False, Wheel(2.0, ("red", "blue"), (3, 4)))


def test_plain_values_become_what_the_annotations_say():
    car = read_value(Car, PLAIN)
    assert car == CAR and isinstance(car.wheel.size, float)
    assert read_value(Car, {**PLAIN, "home": None}).home is None
    assert read_value(Car, {**PLAIN, "wheel": Wheel()}).wheel == Wheel()  # what is one already, is taken


def test_changes_by_mapping_reach_inside_and_leave_the_rest():
    assert change_fields(CAR, {}) == CAR
    changed = change_fields(CAR, {"name": "c", "wheel": {"size": 5}})
    assert changed == Car("c", Path("garage"), "petrol", False, Wheel(5.0, ("red", "blue"), (3, 4)))
    assert change_fields(CAR, {"wheel": Wheel()}).wheel == Wheel()
    assert CAR.name == "b" and CAR.wheel.size == 2.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nam": "c"}, r"^unknown setting nam; did you mean name\?$"),
        ({"wheel": {"sizes": 1}}, r"^unknown setting wheel\.sizes; did you mean wheel\.size\?$"),
        ({"wheel": {"x": 1}}, r"^unknown setting wheel\.x; there are size, colours, limits$"),
        ({"wheel": {"colours": "red"}}, r"^wheel\.colours is 'red'; it must be a list, such as \['red'\]$"),
        ({"wheel": {"colours": [1]}}, r"^wheel\.colours is 1; it must be a string$"),
        ({"wheel": {"limits": [1, 2, 3]}}, r"^wheel\.limits is \[1, 2, 3\]; it must be 2 numbers$"),
        ({"wheel": {"size": float("inf")}}, r"^wheel\.size is inf; it must be a number$"),
        ({"home": 3}, "^home is 3; it must be a path$"),
        ({"fuel": "coal"}, "^fuel is 'coal'; choose one of petrol, sun$"),
    ],
)
def test_a_change_that_does_not_fit_names_the_setting_and_the_way_out(changes, message):
    with pytest.raises(UserError, match=message):
        change_fields(CAR, changes)


def without(values: dict, *path: str) -> dict:
    name, *rest = path
    if rest:
        return {**values, name: without(values[name], *rest)}
    return {key: value for key, value in values.items() if key != name}


JSON = to_json(presets.electra_small())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({**JSON, "stepz": 3}, r"unknown setting stepz; did you mean steps\?"),
        ({**JSON, "optim": {**JSON["optim"], "colour": 3}}, r"unknown setting optim\.colour; there are name, lr"),
        (without(JSON, "seed"), "seed is missing"),
        (without(JSON, "generator", "num_heads"), r"generator\.num_heads is missing"),
        ({**JSON, "steps": "many"}, "steps is 'many'; it must be a whole number"),
        ({**JSON, "steps": True}, "steps is True; it must be a whole number"),
        ({**JSON, "optim": {**JSON["optim"], "lr": float("nan")}}, r"optim\.lr is nan; it must be a number"),
        ({**JSON, "optim": {**JSON["optim"], "betas": [0.9]}}, r"optim\.betas is \[0\.9\]; it must be 2 numbers"),
        ({**JSON, "optim": 3}, "optim is 3; it must be an object with name, lr"),
        ({**JSON, "compile": 1}, "compile is 1; it must be true or false"),
        ({**JSON, "share": "all"}, "share is 'all'; choose one of nothing, embeddings, encoder"),
        ([], "the config is"),
    ],
)
def test_a_bad_json_names_the_setting_and_the_way_out(values, message):
    with pytest.raises(UserError, match=message):
        from_json(values)


@pytest.mark.parametrize("word", ["none", "None"])
def test_the_word_none_is_told_from_none(word):
    for preset in (presets.mini, presets.mlm_small):
        with pytest.raises(
            UserError, match=f"^generator is '{word}'; to have none, write generator=None, not a string$"
        ):
            preset(generator=word)
    with pytest.raises(UserError, match=r"^optim.max_grad_norm is '\w+'; to have none, write max_grad_norm=None"):
        presets.mini(optim={"max_grad_norm": word})
    assert str(presets.mini(run=word).run) == word  # a folder may be called so
