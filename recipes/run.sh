# shellcheck shell=bash
# What the recipes have in common; each of them reads this file first. Not a recipe itself.
#
#   run COMMAND ...            print a command, then run it
#   once FILE COMMAND ...      the same, unless FILE is there already
#   doctor WHAT ...            ask the doctor; what it finds serious ends the recipe, unless IGNORE_DOCTOR=1
#   score RUN MODEL ...        export a run as MODEL, score it on GLUE into RUN/glue, and export it again, with the scores in its card
#   pretrain RUN PRESET ...    train, on GPUS cards (1) or the CPU; started again, it goes on where it was
#
# With --dry-run nothing is run: every command is printed, and read by the same code that `electra` reads it with.

set -euo pipefail
recipes=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

is_dry=
case "${1:-}" in
    --dry-run) is_dry=1 ;;
    -h | --help)
        sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" # the recipe's first lines
        exit 0
        ;;
    "") ;;
    *)
        echo "$0: unknown argument '$1'; it takes --dry-run, and settings as variables: see --help" >&2
        exit 2
        ;;
esac

if ! command -v electra >/dev/null; then
    echo "$0: there is no command 'electra' here; activate the environment that has it: source .venv/bin/activate" >&2
    exit 2
fi

if [ -n "$is_dry" ]; then
    commands=$(mktemp)
    check_commands() {
        local code=$? python
        python=$(dirname "$(readlink -f "$(command -v electra)")")/python # beside electra: the one that it runs with
        [ -x "$python" ] || python=python3
        if [ "$code" = 0 ]; then "$python" "$recipes/check.py" <"$commands" || code=2; fi
        rm -f "$commands"
        exit "$code"
    }
    trap check_commands EXIT
fi

run() {
    local line
    line=$(printf '%q ' "$@")
    echo "+ ${line% }"
    if [ -n "$is_dry" ]; then echo "$line" >>"$commands"; else "$@"; fi
}

once() {
    local file=$1
    shift
    if [ -n "$is_dry" ] || [ ! -e "$file" ]; then run "$@"; else echo "$file is there: $1 $2 is not run again"; fi
}

doctor() {
    local code=0
    run electra doctor "$@" || code=$?
    if [ "$code" -gt 1 ]; then exit "$code"; fi # it could not be asked, or was interrupted
    if [ "$code" = 1 ] && [ -z "${IGNORE_DOCTOR:-}" ]; then
        echo "The doctor found something serious: see above. IGNORE_DOCTOR=1 goes on all the same." >&2
        exit 1
    fi
}

pretrain() {
    local folder=$1
    shift
    if [ "${GPUS:-1}" = 1 ]; then
        run electra pretrain "$@" --run "$folder" # exit code 75: it was asked to stop; start the recipe again
    else
        TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 run torchrun --standalone --nproc-per-node "$GPUS" --max-restarts 3 \
            --signals-to-handle SIGTERM,SIGINT,SIGUSR1 --shutdown-timeout 100 \
            -m -- electrakit pretrain "$@" --run "$folder"
        if [ -z "$is_dry" ] && ! grep -q '"is_complete": true' "$folder/status.json"; then exit 75; fi
    fi
}

score() {
    local folder=$1 model=$2
    shift 2
    run electra export "$folder" --out "$model"
    run electra glue "$model" --data "$GLUE" "$@" --out "$folder/glue"
    run electra export "$folder" --out "$model"
}
