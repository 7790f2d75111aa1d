"""The problems a run can have, as data: what each usually means and what to try. `checks` finds them."""

from dataclasses import dataclass

from electrakit.doctor.findings import Finding, Level


@dataclass(frozen=True)
class Problem:
    """A problem with its explanation and advice; each has a section in docs/troubleshooting.md."""

    title: str
    means: str
    advice: str

    def found(self, level: Level, seen: str, means: str | None = None, advice: str | None = None) -> Finding:
        """This problem in a run. means, advice: in place of the usual text, where the run tells more."""
        return Finding(level, self.title, seen, means or self.means, advice or self.advice)


AT_UNIGRAM_ENTROPY = Problem(
    "the generator is stuck at the unigram entropy",
    "The generator knows how frequent each token is and copies the chosen tokens that it is shown; it has learned nothing from context. "
    "Every run passes through this after its warm-up. A run that stays there has text without context (single letters, shuffled words), "
    "too few steps or too small batches for its body, or a learning rate that is too high or too low.",
    "Run electra doctor on the shards first. If the text is fine: more steps, larger batches (--batch-size), half and twice the "
    "--optim.lr, or the modern body with Muon (modern_mini, modern_small), which leaves this plateau within a few hundred steps.",
)
AT_BASE_RATE = Problem(
    "the discriminator is stuck at the base rate",
    "It predicts the average share of replaced tokens for every token. Usual causes: text without context, such as a "
    "corpus of single letters; replacements chosen by argmax instead of sampled; a generator as large as the discriminator; padding that "
    "is scored; a learning rate that is too high. (Sampling and padding are right in ElectraKit's own objectives.)",
    "Run electra doctor on the shards. If the generator is stuck too, begin there. Make the generator 1/4 to 1/2 of the discriminator's "
    "width, try half the --optim.lr and a longer --optim.warmup-steps, and check that objective.disc_weight is 50 (auto: 10).",
)
GENERATOR_TOO_STRONG = Problem(
    "the generator is too strong",
    "Its samples are nearly always the original token, so hardly any token is replaced, and the discriminator has nothing to learn "
    "from. The generator is too large, was pretrained, or has memorised the text.",
    "Make the generator smaller (1/4 to 1/2 of the discriminator's width), raise --objective.temperature or --objective.mask-prob, or use "
    "--objective.disallow-correct; if rows were seen many times, add text.",
)
ONE_ANSWER = Problem(
    "the discriminator gives one answer",
    "It predicts the same for every token. Where replaced tokens are rare, 'original' is mostly right, so the accuracy looks good. It was "
    "not trained (its loss has no weight, or its weights are frozen), its outputs are saturated by a learning rate that is too high, or "
    "the weights that it starts from do not belong to its head.",
    "Look at the AUC instead of the accuracy. Check that objective.disc_weight is 50 (auto: 10) and that every weight is trained; try "
    "a fifth of the --optim.lr.",
)
SPIKES = Problem(
    "the loss has spikes",
    "Single updates were too large. The learning rate is near its limit, gradients are not clipped, or some rows are unlike the others "
    "(encoded data, rows of one token).",
    "Lower --optim.lr, set --optim.max-grad-norm 1, lengthen --optim.warmup-steps; if spikes come back in each epoch, run "
    "electra doctor on the shards.",
)
DIVERGED = Problem(
    "the training has diverged",
    "The loss is far above its best and does not recover: what the weights had learned is lost. The learning "
    "rate is too high or the warm-up too short.",
    "Start a new run with a third of the --optim.lr and twice the --optim.warmup-steps. To save work, continue from the last good "
    "checkpoint with --init-discriminator and --init-generator.",
)
NOT_FINITE = Problem(
    "losses or gradients were not finite",
    "Such steps are skipped; after three in a row the run returns to its last checkpoint, once. One or two in a long run do no harm. "
    "Many are the start of a divergence, or an overflow in a custom objective.",
    "Lower --optim.lr, lengthen --optim.warmup-steps, set --optim.max-grad-norm 1; with a custom objective, try --precision fp32 "
    "and look for logarithms of zero and divisions by zero.",
)
LR_TOO_HIGH = Problem(
    "the learning rate is too high",
    "Updates this large drive the layers into a state that they do not leave: the loss rises while the rate is high, and in the end the "
    "outputs may no longer depend on the inputs, so that only the output biases learn.",
    "Start a new run with a fifth of the --optim.lr, and twice the --optim.warmup-steps.",
)
LR_TOO_LOW = Problem(
    "the learning rate is too low",
    "The network has not even learned how frequent each token is, which takes a few hundred steps, while the loss neither jumps nor rises: "
    "updates are too small or too few.",
    "Raise --optim.lr by a factor of 10 (the paper: 5e-4 for small, 2e-4 for base, with batches of 128 and 256 rows), and check that "
    "--optim.warmup-steps is a small part of the run.",
)
WARMUP_TOO_SHORT = Problem(
    "the warm-up is too short",
    "Training failed right when the learning rate reached its peak: the optimizer's averages were not reliable yet.",
    "Lengthen --optim.warmup-steps: 1 to 10 % of the run, at least a few hundred steps (the paper: 10,000). Or lower --optim.lr.",
)
NOT_SHARED = Problem(
    "embeddings are not shared though asked",
    "Generator and discriminator have different word embeddings, trained separately: copied instead of shared, or separated by a "
    "move or a load. The discriminator then misses what the generator's softmax teaches them (in the paper, about .7 points of GLUE).",
    "With a custom pair, call ek.tie(generator, discriminator, share='embeddings') before ek.Electra(...), and again after anything "
    "that makes new parameters. Or set share='nothing'.",
)
OVERFITTING = Problem(
    "validation gets worse while training gets better",
    "The model memorises its training rows. More steps will make it worse.",
    "Add text or stop earlier: the best checkpoint is kept (electra export --checkpoint best). A smaller network, or dropout "
    "(--discriminator.dropout 0.1), also helps.",
)
SLOWER = Problem(
    "training became slower",
    "Something slows the machine down: other programs, a hot or throttled processor, a slow or full disk, swapping. "
    "After a restart: another machine, or fewer processes.",
    "Look at the machine (top, nvidia-smi) while it trains; stop what does not belong there. The result is not affected.",
)
ALWAYS_CLIPPED = Problem(
    "the gradient is always cut, and by far",
    "The gradient norm is many times optim.max_grad_norm in nearly every step. Adam hides the scale, but gradients of different "
    "size now count the same, and a spike looks like any other step.",
    "Usually a sign of a learning rate that is too high or of a very large objective.disc_weight: lower them. If the loss falls well, "
    "raise --optim.max-grad-norm to what the log's grad_norm usually is.",
)
YOUNG = Problem(
    "the run is too young to say more",
    "All runs are like this at first: the generator learns how frequent tokens are, then to copy those it is shown, then context; the "
    "discriminator stays at the base rate until context is learned, in small runs for thousands of steps. This is not a problem yet.",
    "Let it train, and check again later. If nothing moves long after the warm-up, the doctor will report it.",
)
INCOMPLETE = Problem(
    "the run has not come to its end",
    "It is training now, or was stopped: its learning rate has not decayed completely, so its last metrics are not its best.",
    "If it is not training, run the same command again: it resumes.",
)
