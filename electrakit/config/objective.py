"""The settings of a training objective, and the rules that objectives share."""

from dataclasses import dataclass
from typing import Literal

from electrakit.common.errors import UserError
from electrakit.config.base import Settings, check_positive, check_rates

ObjectiveKind = Literal["electra", "mlm", "replace_mlm", "all_tokens_mlm", "electric"]

DISC_WEIGHTS = {"electra": 50.0, "replace_mlm": 1.0, "all_tokens_mlm": 7.0, "electric": 50.0}
"""Of the discriminator's loss beside the generator's, by kind of objective. The first is the paper's; it gives none for the others."""


def max_chosen(num_tokens: int, rate: float) -> int:
    """K, the most positions chosen in a row of T tokens: 19 for 128 tokens at .15."""
    return min(num_tokens, max(1, int((rate + 0.005) * num_tokens)))


@dataclass(frozen=True, kw_only=True)
class ObjectiveConfig(Settings):
    """The training objective. The defaults are ELECTRA's."""

    kind: ObjectiveKind = "electra"
    """`electra`: replaced token detection; `mlm`: BERT's objective; `replace_mlm` and `all_tokens_mlm`: between; `electric`: energies."""
    mask_prob: float = 0.15
    """Share of a row's real tokens that is chosen for masking."""
    replace_prob: float = 0.85
    """Share of the chosen tokens that the generator sees as [MASK]; the others it sees as they are."""
    scheme: Literal["bert", "electra"] = "bert"
    """The input of `mlm` at the chosen tokens. bert: 80 % [MASK], 10 % random, 10 % unchanged; electra: 85 % [MASK], 15 % unchanged."""
    temperature: float = 1.0
    """Temperature at which replacements are sampled from the generator."""
    final_temperature: float | None = None
    """The temperature changes linearly to this over the run. None: it stays."""
    flatten_to: Literal["uniform", "frequency"] = "uniform"
    """What a temperature above 1 brings the samples closer to: words drawn uniformly, which are rare ones, or by their frequency."""
    disallow_correct: bool = False
    """Never sample the original token as its own replacement."""
    loss_on: Literal["all", "masked"] = "all"
    """Where the discriminator's loss is computed: at all real tokens, or (ELECTRA 15 %) at the chosen ones only."""
    gen_weight: float = 1.0
    """Weight of the generator's loss."""
    disc_weight: float | None = None
    """Weight of the discriminator's loss. None: 50 for electra and electric, 1 for replace_mlm, 7 for all_tokens_mlm."""
    correct_weight: float = 0.0
    """Above 0, the discriminator also predicts the original of every chosen token (COCO-LM's correction), with this weight."""
    keep_mask_prob: float = 0.0
    """Share of the chosen tokens that the discriminator, too, reads as [MASK], to correct, not to detect. Needs `correct_weight`."""
    adversarial: bool = False
    """Train the generator to deceive the discriminator (REINFORCE) instead of to predict words; the paper found it worse."""
    generator_steps: int | None = None
    """Two stages: the generator alone for so many steps, then a discriminator that starts from it; the paper found it worse."""
    official: bool = False
    """Choose positions with replacement, as google-research/electra does (about 8 % fewer are masked); for comparison."""
    whole_words: bool = False
    """Choose whole words instead of single tokens."""

    def check(self) -> None:
        check_mask_prob(self.mask_prob)
        check_rates(self.values("replace_prob", "keep_mask_prob"))
        check_temperature(self.temperature)
        if self.final_temperature is not None:
            check_temperature(self.final_temperature)
        if self.correct_weight < 0:
            raise UserError(f"correct_weight {self.correct_weight} must not be negative")
        if self.correct_weight and self.kind != "electra":
            raise UserError(f"correct_weight goes with kind=electra; {self.kind} predicts words anyway: leave it out")
        if self.keep_mask_prob and not self.correct_weight:
            raise UserError(
                f"keep_mask_prob {self.keep_mask_prob} without correct_weight: nothing would be learned at these tokens"
            )
        if self.kind == "mlm" and self.final_temperature is not None:
            raise UserError("final_temperature is of the generator's samples, and kind=mlm has none: leave it out")
        if self.kind == "mlm" and self.flatten_to != "uniform":
            raise UserError(
                "flatten_to=frequency is of the generator's samples, and kind=mlm has none: use flatten_to=uniform"
            )
        if self.flatten_to != "uniform" and self.temperature == 1 and self.final_temperature is None:
            raise UserError(
                "flatten_to=frequency changes nothing at temperature 1: raise it, or use flatten_to=uniform"
            )
        check_loss_weights(self.gen_weight, self.resolved_disc_weight)
        check_whole_words(self.whole_words, self.official)
        check_positive(self.values("generator_steps"))
        for name in ("adversarial", "generator_steps"):
            if getattr(self, name) and self.kind != "electra":
                raise UserError(f"{name} goes with kind=electra, kind is {self.kind}: leave it out")
        if self.adversarial and self.generator_steps is not None:
            raise UserError("adversarial training needs both networks at every step: leave out generator_steps")
        if self.adversarial and (self.disallow_correct or self.keep_mask_prob or self.flatten_to != "uniform"):
            raise UserError(
                "adversarial trains the distribution that is sampled: leave out disallow_correct, flatten_to and keep_mask_prob"
            )
        if self.kind == "electric":
            only = {"temperature": 1.0, "final_temperature": None, "disallow_correct": False, "official": False}
            for name, wanted in only.items():
                if (value := getattr(self, name)) != wanted:
                    raise UserError(
                        f"objective.{name} is {value}, and kind=electric must know how likely each of its samples was: leave it out"
                    )
            if self.loss_on != "all":
                raise UserError("objective.loss_on=masked: kind=electric learns from the other tokens; use loss_on=all")

    @property
    def resolved_disc_weight(self) -> float:
        """The weight that is used: as set, or that of the kind."""
        return DISC_WEIGHTS.get(self.kind, 0.0) if self.disc_weight is None else self.disc_weight


# Rules that the objectives share


def check_mask_prob(mask_prob: float) -> None:
    check_rates({"mask_prob": mask_prob})
    if mask_prob == 0:
        raise UserError("mask_prob is 0: nothing would be learned; the paper has 0.15")


def check_temperature(temperature: float) -> None:
    check_positive({"temperature": temperature}, "1 is the paper's")


def check_loss_weights(gen_weight: float, disc_weight: float) -> None:
    if min(gen_weight, disc_weight) < 0:
        raise UserError(f"gen_weight {gen_weight} and disc_weight {disc_weight} must not be negative")


def check_whole_words(has_whole_words: bool, official: bool) -> None:
    if has_whole_words and official:
        raise UserError("official=True chooses tokens one by one: drop it, or the choice of whole words")
