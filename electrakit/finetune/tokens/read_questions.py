"""Reads questions about texts: of SQuAD's or MRQA's files with their answers, or without answers of any of the user's."""

from pathlib import Path

from electrakit.common.errors import UserError
from electrakit.finetune.read_glue import require_file, rows_warning
from electrakit.finetune.tasks import Split, Task
from electrakit.finetune.tokens.mrqa import is_mrqa, read_mrqa
from electrakit.finetune.tokens.squad import SquadExamples, SquadQuestion, is_in_place, read_squad_json, unique
from electrakit.finetune.user_tables import field_of, read_user_table


def read_questions(data: str, task: Task, split: Split) -> SquadExamples:
    """The questions of a split. Training questions whose answer is not where the file says are left out."""
    path = require_file(data, task, split)
    found = read_mrqa(path, split.name == "train") if is_mrqa(path) else read_squad_json(path, task)
    warnings = rows_warning(task, split, len(found.questions), "questions")
    kept = [one for one in found.questions if split.name != "train" or is_in_place(one, found.contexts[one.context])]
    if not kept:
        raise UserError(f"{path}: no answer stands where the file says")
    if num_lost := len(found.questions) - len(kept):
        warnings += (f"{task.title} {split.name}: {num_lost:,} answers do not stand where the file says: left out",)
    return SquadExamples(kept, found.contexts, warnings)


def read_unlabelled(path: Path) -> SquadExamples:
    """Questions without answers, from a file of SQuAD or MRQA, or a table with a question and a context in each row."""
    if path.suffix.lower() == ".json":
        return read_squad_json(path)
    if is_mrqa(path):
        return read_mrqa(path, has_answers=False)
    table = read_user_table(path)
    missing = {"question", "context"} - set(table.columns)
    if missing:
        raise UserError(
            f"{path} has the columns {', '.join(table.columns)}, not {missing.pop()!r}; a question and its context are needed"
        )
    contexts: dict[str, int] = {}
    found = []
    for number, (where, row) in enumerate(table.rows):
        text, context = (field_of(where, row, column) for column in ("question", "context"))
        question = SquadQuestion(row.get("id", str(number)), text, contexts.setdefault(context, len(contexts)))
        found.append((where, question))
    return SquadExamples(unique(found), list(contexts), table.warnings)
