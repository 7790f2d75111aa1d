"""Examines a run: its measures, and what is wrong with it."""

from electrakit.doctor.checks import RUN_CHECKS
from electrakit.doctor.evidence import Evidence
from electrakit.doctor.findings import Examination, Finding, Level
from electrakit.runs.files import RunFiles


def examine_run(run: RunFiles) -> list[Finding]:
    """The findings in a run, the worst first, each problem once. Needs no torch."""
    evidence = Evidence(run)
    order: dict[Level, int] = {"serious": 0, "warning": 1, "info": 2}
    findings = sorted([one for check in RUN_CHECKS for one in check(evidence)], key=lambda one: order[one.level])
    return [one for place, one in enumerate(findings) if one.title not in {other.title for other in findings[:place]}]


def examination_of(run: RunFiles) -> Examination:
    how = "complete" if run.is_complete else "not complete"
    what = f"Run {run.path}: {how}, step {run.step:,}" if run.lines else f"Run {run.path}: nothing is logged yet"
    return Examination(what, measures_of(run), examine_run(run))


def measures_of(run: RunFiles) -> dict[str, float]:
    """How far a run is and how good, by printed name; what its log does not have is left out."""
    evidence = Evidence(run)
    rate = evidence.base_rate_entropy()
    measures = {
        "steps": run.step,
        "tokens seen": run.step * run.tokens_per_step,
        "times each row was seen": evidence.epochs,
        "generator loss (nats)": evidence.latest("mlm_loss"),
        "unigram entropy (nats)": evidence.unigram_entropy,
        "with shown tokens copied (nats)": evidence.floor,
        "generator accuracy": evidence.latest("gen_acc"),
        "sampled accuracy": evidence.latest("sampled_acc"),
        "replaced rate": evidence.latest("replaced_rate"),
        "discriminator loss (nats)": evidence.latest("disc_loss"),
        "entropy of the base rate (nats)": rate.last if len(rate.values) and evidence.kind == "electra" else None,
        "discriminator AUC": evidence.latest("disc_auc"),
        "discriminator recall": evidence.latest("disc_recall"),
        "tokens per second": evidence.latest("tokens_per_second"),
    }
    return {name: value for name, value in measures.items() if value is not None}
