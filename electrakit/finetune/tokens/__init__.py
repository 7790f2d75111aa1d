"""Tasks that predict tokens: SQuAD's answers and chunks."""
