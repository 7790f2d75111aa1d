# shellcheck shell=bash
# Shared functions, which every recipe sources first. Not a recipe itself.
#
#   run COMMAND ...            print a command, then run it
#   once FILE COMMAND ...      the same, unless FILE exists
#   doctor WHAT ...            run the doctor; a serious finding ends the recipe, unless IGNORE_DOCTOR=1
#   score RUN MODEL ...        export a run as MODEL, score it on GLUE into RUN/glue, and export it again, with the scores in its card
#   pretrain RUN PRESET ...    train on GPUS GPUs (default 1) or the CPU; resumes when started again
#
# With --dry-run nothing is run: every command is printed, and parsed by the code that `electra` itself uses.

set -euo pipefail
recipes=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

is_dry=
case "${1:-}" in
    --dry-run) is_dry=1 ;;
    -h | --help)
        sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" # the comment at the top of the recipe
        exit 0
        ;;
    "") ;;
    *)
        echo "$0: unknown argument '$1'; use --dry-run, and settings as environment variables: see --help" >&2
        exit 2
        ;;
esac

if ! command -v electra >/dev/null; then
    echo "$0: the command 'electra' was not found; activate its environment: source .venv/bin/activate" >&2
    exit 2
fi

if [ -n "$is_dry" ]; then
    commands=$(mktemp)
    check_commands() {
        local code=$? python
        python=$(dirname "$(readlink -f "$(command -v electra)")")/python # the Python that electra runs with
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
    if [ -n "$is_dry" ] || [ ! -e "$file" ]; then run "$@"; else echo "$file exists: $1 $2 is not run again"; fi
}

doctor() {
    local code=0
    run electra doctor "$@" || code=$?
    if [ "$code" -gt 1 ]; then exit "$code"; fi # it failed or was interrupted
    if [ "$code" = 1 ] && [ -z "${IGNORE_DOCTOR:-}" ]; then
        echo "The doctor found something serious: see above. To continue anyway, set IGNORE_DOCTOR=1." >&2
        exit 1
    fi
}

pretrain() {
    local folder=$1
    shift
    if [ "${GPUS:-1}" = 1 ]; then
        run electra pretrain "$@" --run "$folder" # exit code 75: stopped by a signal; start the recipe again
    else
        TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 run torchrun --standalone --nproc-per-node "$GPUS" --max-restarts 3 \
            --signals-to-handle SIGTERM,SIGINT,SIGHUP,SIGUSR1,SIGUSR2,SIGXCPU --shutdown-timeout 100 \
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
