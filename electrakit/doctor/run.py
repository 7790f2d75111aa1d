"""Examines a run: its measures, and what is wrong with it."""

from electrakit.doctor.checks import RUN_CHECKS
from electrakit.doctor.evidence import Evidence
from electrakit.doctor.findings import COLOURS, Examination, Finding, Measure, Measures
from electrakit.runs.files import RunFiles


def examine_run(run: RunFiles) -> Examination:
    """Needs no torch."""
    evidence = Evidence(run)
    how = "complete" if run.is_complete else "not complete"
    what = f"Run {run.path}: {how}, step {run.step:,}" if run.lines else f"Run {run.path}: nothing is logged yet"
    return Examination(what, measures_of(evidence), findings_of(evidence))


def findings_of(evidence: Evidence) -> list[Finding]:
    """The worst first, each problem once."""
    every = [finding for check in RUN_CHECKS for finding in check(evidence)]
    by_title: dict[str, Finding] = {}
    for finding in sorted(every, key=lambda finding: list(COLOURS).index(finding.level)):
        by_title.setdefault(finding.title, finding)
    return list(by_title.values())


def measures_of(evidence: Evidence) -> Measures:
    """How far a run is and how good; what its log does not have is left out."""
    rate = evidence.base_rate_entropy()
    measures = {
        Measure.STEPS: evidence.run.step,
        Measure.TOKENS_SEEN: evidence.num_tokens,
        Measure.EPOCHS: evidence.epochs,
        Measure.GENERATOR_LOSS: evidence.latest("mlm_loss"),
        Measure.UNIGRAM_ENTROPY: evidence.unigram_entropy,
        Measure.LOSS_WITHOUT_CONTEXT: evidence.floor,
        Measure.GENERATOR_ACCURACY: evidence.latest("gen_acc"),
        Measure.SAMPLED_ACCURACY: evidence.latest("sampled_acc"),
        Measure.REPLACED_RATE: evidence.latest("replaced_rate"),
        Measure.DISCRIMINATOR_LOSS: evidence.latest("disc_loss"),
        Measure.BASE_RATE_ENTROPY: rate.last_quarter if rate else None,
        Measure.DISCRIMINATOR_AUC: evidence.latest("disc_auc"),
        Measure.DISCRIMINATOR_RECALL: evidence.latest("disc_recall"),
        Measure.SPEED: evidence.latest("tokens_per_second"),
    }
    return {measure: value for measure, value in measures.items() if value is not None}
