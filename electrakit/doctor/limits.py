"""The thresholds of the doctor's checks of a run, and where each comes from.

A line of the log is a mean over `log_every` steps. The checks compare medians of several lines, mostly of a quarter of the log.
Shares and rates are from 0 to 1, losses in nats.
"""

from electrakit.doctor.findings import Thresholds

# Age: how long until a flat loss is a plateau.
FEWEST_LINES = 8
"""Lines after the warm-up: a median of fewer is too noisy."""
SETTLED_STEPS, SETTLED_WARMUPS = 200, 2.0
"""Steps after the warm-up, and multiples of its length: by then healthy runs leave the plateau at the unigram entropy."""
OLD_TOKENS, OLD_STEPS = 100e6, 10_000
"""An unfinished run may stay on a plateau for so long: the warm-up of ELECTRA-small alone sees 164 M tokens."""
PLATEAU = 0.03
"""The last quarter is better than the second by less than this share. Runs that learn have .03 to .3 at that age."""

# The generator.
AT_FLOOR = 0.95
"""Share of the loss that token frequencies and copying reach. Samples of rows differ by .02; models that use context get below .9."""
HIDDEN_ACCURACY = 0.15
"""Accuracy by frequency alone at hidden tokens, used when the shards are gone: "the" is .05 of English, e is .12 of its letters."""
HARDLY_MOVED = 0.5
"""Share of the way from uniform predictions to the unigram entropy; healthy runs go all of it within their warm-up."""
ENTROPY_OF_TEXT = 0.8
"""Unigram entropy of text as a share of ln V, used when the shards are gone: vocabularies of 8,000 to 30,000 have .73 to .8."""
LETTERS = 0.25
"""Share of single letters among the words: from here on the text is the cause. The corpus check calls that serious, too."""
TOO_STRONG = Thresholds(warning=0.7, serious=0.9)
"""Sampled accuracy: of 100 tokens, 15 of them chosen, fewer than 5, or than 2, are then replaced."""

# The discriminator.
BASE_RATE_SHARE = 0.97
"""Share of the base rate's entropy: an AUC of .6 has about this loss."""
AUC_OF_CHANCE = 0.56
"""Untrained weights have .45 to .55."""
AUC_OF_LEARNING = 0.65
"""From here on the discriminator uses context, so the text has some, and the generator only needs more time."""
CONSTANT = 0.0005
"""Distance of an AUC from .5: networks whose scores differ at all, even by chance, are further away."""
ONE_ANSWER_RECALL = 0.005
"""Recall of one of the two classes."""
WORSE_THAN_BASE_RATE = 1.1
"""Multiple of the base rate's entropy: any network that is trained learns that rate within some dozen steps."""

# Stability.
SPIKE, SPIKE_DEVIATIONS = 1.25, 6.0
"""Multiple of the median of the eight lines around, and distance from it in their deviations: a batch of hard rows has 1.05."""
FEWEST_SPIKES, SPIKES_SHARE, GREAT_SPIKE = 2, 5e-4, 2.0
"""The number of spikes that does harm, also as a share of the lines; a single one only from this multiple of the median."""
MOST_LINES, MOST_MEANS = 10_000, 1_000
"""Longer logs are averaged to so many lines, for spikes and for rises: of many small batches, some are hard by chance."""
LOST, LOST_NATS = 1.15, 0.2
"""Multiple of the best median of five lines so far, and distance from it: noise has 1.03, at very low losses a tenth of a nat."""
SKIPPED_SHARE = Thresholds(warning=1e-4, serious=1e-2)
"""Share of the steps that were not finite: one in 10,000 is usual."""
SHORT_WARMUP, ENOUGH_WARMUP = 0.02, 2_000
"""Share of the run, and a number of steps: 2 / (1 - beta2) is the rule for Adam (Ma and Yarats 2021)."""
RIGHT_AFTER = 0.1
"""Share of the run: trouble so soon after the warm-up is blamed on it."""
CLIPPED, CLIPPED_LINES = 20.0, 0.95
"""Multiple of max_grad_norm, in this share of the lines. Healthy runs with a disc_weight of 50 have 1 to 5."""

# Validation and speed.
OVERFIT = Thresholds(warning=0.02, serious=0.2)
"""Rise of validation above its best, as a share: 1,000 rows have a noise of .005."""
STILL_FALLING, NOISE_FACTOR = 0.99, 2.0
"""Training loss now as a share of then; and the rise of validation as a multiple of its noise: the best of many is low by chance."""
SEEN_OFTEN = 2.0
"""Times that each row was seen: a model does not memorise what it saw once."""
SLOWER_SHARE, FEWEST_TIMES = 0.7, 20
"""Share of the speed before, and the lines needed to judge it: a short load by other programs does not move the median."""
