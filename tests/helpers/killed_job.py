"""`python killed_job.py NUMBER ARGUMENTS...`: electra ARGUMENTS, killed when its NUMBERth fine-tuning job begins to train."""

import os
import signal
import sys
from typing import Any

from electrakit.cli.main import main
from electrakit.finetune import train_job

train_model = train_job.train_model
num_left = int(sys.argv[1])


def train_or_die(*arguments: Any) -> list[float]:
    global num_left
    num_left -= 1
    if num_left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return train_model(*arguments)


train_job.train_model = train_or_die
main(sys.argv[2:])
