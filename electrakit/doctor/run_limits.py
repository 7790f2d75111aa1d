"""What is still healthy in a run, and why: every number that the doctor compares with.

A line of the log is a mean of `log_every` steps, and what is compared are medians of several lines, mostly of a quarter of them.
Shares and rates are from 0 to 1, losses in nats.
"""

from electrakit.doctor.findings import Level

# Age: how long before a plateau is one.
FEWEST_LINES = 8
"""After the warm-up: with fewer, no median is worth anything."""
SETTLED_STEPS, SETTLED_WARMUPS = 200, 2.0
"""After the warm-up, steps and lengths of it: healthy runs cross the plateau of the unigram entropy, or begin to, in this time."""
OLD_TOKENS, OLD_STEPS = 100e6, 10_000
"""A run that still goes on may stay on a plateau for so long: the warm-up of ELECTRA-small alone sees 164 M tokens."""
PLATEAU = 0.03
"""The last quarter is by less than this share better than the second. Runs that learn have .03 to .3 at that age."""

# The generator.
AT_FLOOR = 0.95
"""Of the loss that frequencies and copying give: the frequencies of some rows differ by .02, and who uses neighbours gets below .9."""
HIDDEN_ACCURACY = 0.15
"""Of the tokens that are not shown, by frequency alone, where the shards are gone: "the" is .05 of English, e is .12 of its letters."""
HARDLY_MOVED = 0.5
"""Of the way from a uniform guess to the unigram entropy, which healthy runs go within their warm-up."""
ENTROPY_OF_TEXT = 0.8
"""Unigram entropy of text, in ln V, where the shards are gone: vocabularies of 8,000 to 30,000 have .73 to .8."""
LETTERS = 0.25
"""Single letters among the words of the shards: then the text is to blame. The corpus doctor calls that serious, too."""
TOO_STRONG: dict[Level, float] = {"warning": 0.7, "serious": 0.9}
"""Sampled accuracy: of 100 tokens, 15 of them chosen, less than 5, or than 2, are replaced."""

# The discriminator.
AT_BASE_RATE = 0.97
"""Of the entropy of the base rate: with an AUC of .6 the loss comes to about that."""
AUC_OF_CHANCE = 0.56
"""Fresh weights have .45 to .55."""
AUC_OF_LEARNING = 0.65
"""Then there is context in the text, and somebody uses it: the generator is a matter of time."""
CONSTANT = 0.0005
"""Distance of an AUC from .5: networks that tell tokens apart at all, if by chance, are further away."""
ONE_ANSWER = 0.005
"""Recall of one of the two classes."""
WORSE_THAN_BASE_RATE = 1.1
"""Entropies of the base rate: a network that is trained at all finds that rate within some dozen steps."""

# Stability.
SPIKE, SPIKE_DEVIATIONS = 1.25, 6.0
"""Times the median of the eight lines around, and above it in their deviations: a batch of hard rows gives 1.05."""
FEWEST_SPIKES, SPIKES, GREAT_SPIKE = 2, 5e-4, 2.0
"""How many, and as a share of the lines, do harm: a single one does not, unless it is this many times the median."""
MOST_LINES, MOST_MEANS = 10_000, 1_000
"""Longer logs are averaged to so many lines, for spikes and for what lasts: of single small batches, some are hard by chance."""
LOST, LOST_NATS = 1.15, 0.2
"""Times the best median of five lines so far, and above it: noise gives 1.03, and with very low losses a tenth of a nat."""
SKIPPED: dict[Level, float] = {"warning": 1e-4, "serious": 1e-2}
"""Share of the steps that were not finite: one in 10,000 happens to everybody."""
SHORT_WARMUP, ENOUGH_WARMUP = 0.02, 2_000
"""Share of the run, and steps: 2 / (1 - beta2) is the rule for Adam (Ma and Yarats 2021)."""
RIGHT_AFTER = 0.1
"""Of the run: what goes wrong so soon behind the warm-up is counted as its fault."""
CLIPPED, CLIPPED_LINES = 20.0, 0.95
"""Times max_grad_norm, in this share of the lines. Healthy runs with a disc_weight of 50 have 1 to 5."""

# Validation and speed.
OVERFIT: dict[Level, float] = {"warning": 0.02, "serious": 0.2}
"""Validation above its best: 1,000 rows have a noise of .005."""
STILL_FALLING, RESTLESS = 0.99, 2.0
"""Training then and now; and the rise of validation in differences of neighbouring ones: the best of many is low by chance."""
SEEN_OFTEN = 2.0
"""Times each row: nobody knows by heart what was seen once."""
SLOWER, FEWEST_TIMES = 0.7, 20
"""Of the speed before, and the lines that it takes to say so: a busy neighbour for a few lines does not move the median."""
