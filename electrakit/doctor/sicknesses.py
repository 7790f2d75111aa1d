"""What can be wrong with a run: what it usually means and what to try, as data. `run_checks` sees them in a run's figures."""

from dataclasses import dataclass
from typing import Any

from electrakit.doctor.findings import Finding, Level


@dataclass(frozen=True)
class Sickness:
    """Each has its section in docs/troubleshooting.md."""

    title: str
    means: str
    advice: str

    def found(self, level: Level, seen: str, **changes: Any) -> Finding:
        """In a run; `changes`: what it means or what to do there, where that is known better."""
        return Finding(
            level, **{"title": self.title, "means": self.means, "advice": self.advice, "seen": seen, **changes}
        )


AT_UNIGRAM_ENTROPY = Sickness(
    "the generator is stuck at the unigram entropy",
    "The generator knows how frequent each token is and copies the chosen tokens that it is shown; it has learned nothing from context. "
    "Every run passes through this after its warm-up. One that stays there has text without context (single letters, shuffled words), "
    "too few steps or too small batches for its body, or a learning rate that does not let it out.",
    "Run electra doctor on the shards first. If the text is well: more steps, larger batches (--batch-size), half and twice the "
    "--optim.lr, or the modern body with Muon (modern_mini, modern_small), which leaves this plateau within some hundred steps.",
)
AT_BASE_RATE = Sickness(
    "the discriminator is stuck at the base rate",
    "It says of every token how many are replaced on average, and tells none from another. Usual causes: text without context, as a "
    "corpus of single letters; replacements taken by argmax instead of sampled; a generator as large as the discriminator; padding that "
    "is scored; a learning rate that is too high. (Sampling and padding are right in ElectraKit's own objectives.)",
    "Run electra doctor on the shards. If the generator is stuck too, begin there. Make the generator 1/4 to 1/2 of the discriminator's "
    "width, try half the --optim.lr and a longer --optim.warmup-steps, and check that objective.disc_weight is 50.",
)
GENERATOR_TOO_STRONG = Sickness(
    "the generator is too strong",
    "What it samples is nearly always the original token, so hardly a token is replaced, and the discriminator has nothing to learn "
    "from. The generator is too large, was trained before, or knows the text by heart.",
    "Make the generator smaller (1/4 to 1/2 of the discriminator's width), raise --objective.temperature or --objective.mask-prob, or use "
    "--objective.disallow-correct; if rows were seen many times, add text.",
)
ONE_ANSWER = Sickness(
    "the discriminator gives one answer",
    "It says the same of every token. Where replaced tokens are rare, 'original' is right of most, so the accuracy looks good. It was "
    "not trained (its loss has no weight, or its weights are frozen), its outputs are saturated by a learning rate that is too high, or "
    "the weights that it starts from do not belong to its head.",
    "Look at the AUC instead of the accuracy. Check that objective.disc_weight is 50 and that every weight is trained; try a fifth of "
    "the --optim.lr.",
)
SPIKES = Sickness(
    "the loss has spikes",
    "Single updates were too long. The learning rate is near its limit, gradients are not cut, or some rows are not like the others "
    "(encoded data, rows of one token).",
    "Lower --optim.lr, set --optim.max-grad-norm 1, lengthen --optim.warmup-steps; if spikes come back in each epoch, run "
    "electra doctor on the shards.",
)
DIVERGED = Sickness(
    "the training has diverged",
    "The loss is far above what it was, and does not come back: the weights have been thrown out of what they had learned. The learning "
    "rate is too high or the warm-up too short.",
    "Start a new run with a third of the --optim.lr and twice the --optim.warmup-steps. To save work, continue from the last good "
    "checkpoint with --init-discriminator and --init-generator.",
)
NOT_FINITE = Sickness(
    "losses or gradients were not finite",
    "Such steps are left out; after three in a row the run goes back to its last checkpoint, once. One or two in a long run do no harm. "
    "Many are the beginning of a divergence, or an overflow in an objective of your own.",
    "Lower --optim.lr, lengthen --optim.warmup-steps, set --optim.max-grad-norm 1; with an objective of your own, try --precision fp32 "
    "and look for logarithms and divisions of zero.",
)
LR_TOO_HIGH = Sickness(
    "the learning rate is too high",
    "Updates this long drive the layers into a corner: the loss rises while the rate is high, and what the networks say may in the end "
    "not depend any more on what they read, so that only the biases of the output learn.",
    "Start a new run with a fifth of the --optim.lr, and twice the --optim.warmup-steps.",
)
LR_TOO_LOW = Sickness(
    "the learning rate is too low",
    "Even how frequent each token is, which takes some hundred steps, is not learned yet, while the loss neither jumps nor rises: the "
    "updates are too short, or too few.",
    "Raise --optim.lr by 10 (the paper: 5e-4 for small, 2e-4 for base, with batches of 128 and 256 rows), and check that "
    "--optim.warmup-steps is a small part of the run.",
)
WARMUP_TOO_SHORT = Sickness(
    "the warm-up is too short",
    "The loss was lost right when the learning rate had come to its height: the optimizer's averages were not worth anything yet.",
    "Lengthen --optim.warmup-steps: 1 to 10 % of the run, some hundred steps at least (the paper: 10,000). Or lower --optim.lr.",
)
NOT_SHARED = Sickness(
    "embeddings are not shared though asked",
    "Generator and discriminator have different word tables, so they were trained apart: copied instead of shared, or torn apart by a "
    "move or a load. The discriminator then misses what the generator's softmax teaches the table (in the paper, about .7 of GLUE).",
    "With a pair of your own, call ek.tie(generator, discriminator, share='embeddings') before ek.Electra(...), and again after anything "
    "that makes new parameters. Or say share='nothing'.",
)
OVERFITTING = Sickness(
    "validation gets worse while training gets better",
    "The model learns its training rows by heart. More steps will make it worse.",
    "Add text or stop earlier: the best checkpoint is kept (electra export --checkpoint best). A smaller network, or dropout "
    "(--discriminator.dropout 0.1), also helps.",
)
SLOWER = Sickness(
    "training became slower",
    "Something else takes the machine: other programs, a hot or throttled processor, a slow or full disk, memory that is being swapped. "
    "After a restart: another machine, or fewer processes.",
    "Look at the machine (top, nvidia-smi) while it trains; stop what does not belong there. The result is the same, it only comes later.",
)
ALWAYS_CLIPPED = Sickness(
    "the gradient is always cut, and by far",
    "The gradient is many times longer than optim.max_grad_norm in nearly every step. Adam hides the scale, but steps of different "
    "size now count the same, and a spike cannot be told from the rule.",
    "Usually a sign of a learning rate that is too high or of a very large objective.disc_weight: lower them. If the loss falls well, "
    "raise --optim.max-grad-norm to what the log's grad_norm usually is.",
)
YOUNG = Sickness(
    "the run is too young to say more",
    "All runs are like this at first: the generator learns how frequent tokens are, then to copy those it is shown, then context; the "
    "discriminator stays at the base rate until context is learned, in small runs for thousands of steps. That is no sickness yet.",
    "Let it train, and ask again. If nothing moves long after the warm-up, the doctor will say so.",
)
INCOMPLETE = Sickness(
    "the run has not come to its end",
    "It is training at this moment, or was stopped: its learning rate has not fallen to its end, so the last figures are not its best.",
    "If it does not train, start the same command again: it goes on where it was.",
)
SICKNESSES = tuple(value for value in list(vars().values()) if isinstance(value, Sickness))
