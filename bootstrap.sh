#!/bin/sh
# Makes .venv, or brings it up to date, with all that the demo, the tests and the documentation need.
#
# `make` calls this before every target, so it answers at once when nothing has changed. What "changed" means is the
# identity below: the files that decide what is installed, and the folder, since an editable install knows its path.
# Whatever goes wrong ends in one message and exit status 2.
#
#   .venv/.installed    the identity of what was installed completely
#   .venv/.installing   the process that is installing; when that process is gone, its work is thrown away

set -eu
cd "$(dirname "$0")"

say() { printf 'partita: %s\n' "$1" >&2; }
fail() {
    printf 'partita: %s\n' "$@" >&2
    exit 2
}

venv=.venv
log=$venv/install.log
identity="$(cat pyproject.toml constraints.txt bootstrap.sh | cksum) $(pwd)"

if [ -x $venv/bin/python ] && [ ! -e $venv/.installing ] && [ "$(cat $venv/.installed 2>/dev/null)" = "$identity" ]; then
    exit 0
fi

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

# The name of a Python that can make environments; the message when there is none names what was found.
find_python() {
    bare=
    found=
    for name in python3.13 python3.12 python3.11 python3 python; do
        command -v $name >/dev/null 2>&1 || continue
        if ! is_new_enough $name; then
            found="${found:+$found, }$name $($name -c 'import platform; print(platform.python_version())' 2>/dev/null || echo '(broken)')"
        elif ! $name -c 'import ensurepip, venv' 2>/dev/null; then
            bare=${bare:-$name}
        else
            echo $name
            return
        fi
    done
    if [ -n "$bare" ]; then
        package=$($bare -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
        fail "$bare can't make an environment: its modules venv and ensurepip are not installed." \
            "On Debian and Ubuntu \`apt install python3-venv\` adds them (or \`apt install $package\`, for that very Python)."
    fi
    fail "Python 3.11 or newer is needed, and PATH has ${found:-no Python}." \
        "Install one (\`apt install python3 python3-venv\`, \`dnf install python3.12\`, \`brew install python@3.12\`) and run make again."
}

# Whether the process that left the mark .installing still runs; a number alone could be anybody's by now.
is_installing() {
    number=$(cat $venv/.installing 2>/dev/null) && [ -n "$number" ] || return 1
    { ps -p "$number" -o args= 2>/dev/null || tr '\0' ' ' <"/proc/$number/cmdline" 2>/dev/null; } | grep -q bootstrap.sh
}

if is_installing; then
    fail "process $(cat $venv/.installing) is installing into .venv already; wait for it to end and run make again."
fi

if [ -e $venv/.installing ]; then
    say "an earlier installation was cut short; .venv is made anew"
    rm -rf $venv
elif [ -e $venv ] && [ ! -x $venv/bin/python ]; then
    say ".venv has no working Python; it is made anew"
    rm -rf $venv
fi

if [ ! -e $venv ]; then
    python=$(find_python)
    say "making .venv with $python ($($python -c 'import platform; print(platform.python_version())'))"
    mkdir $venv || fail "$(pwd) can't be written to; .venv is made in it."
    echo $$ >$venv/.installing
    # Without --clear, which would also remove the mark.
    message=$("$python" -m venv $venv 2>&1) || fail "$python -m venv .venv failed: $(printf '%s' "$message" | tail -n 1)"
else
    is_new_enough $venv/bin/python || fail ".venv holds $($venv/bin/python --version 2>&1), and 3.11 or newer is needed." \
        "Remove it (\`rm -rf .venv\`) and run make again."
    $venv/bin/python -m pip --version >/dev/null 2>&1 || $venv/bin/python -m ensurepip >/dev/null 2>&1 ||
        fail ".venv has no pip and none can be added. Remove it (\`rm -rf .venv\`) and run make again."
    echo $$ >$venv/.installing
fi
rm -f $venv/.installed
: >$log

# pip's output goes to the log; the terminal gets a line for each package.
install() {
    {
        code=0
        $venv/bin/python -m pip install --no-input --disable-pip-version-check --no-color --progress-bar off \
            -c constraints.txt "$@" 2>&1 || code=$?
        echo $code >$venv/.status
    } | tee -a $log | awk '
        /^Collecting /  { printf "  %s\n", $2; fflush() }
        /^ *Building (wheel|editable) for / { printf "  building %s\n", $4; fflush() }
        /^Installing collected/ { print "  unpacking all of them"; fflush() }
        /^WARNING: Retrying/ { print "  the package index does not answer; trying again"; fflush() }' >&2
    code=$(cat $venv/.status)
    rm -f $venv/.status
    [ "$code" -eq 0 ] || explain_failure "$code"
}

explain_failure() {
    # pip has put back what it changed, unless it was killed or the disk is full: then the mark stays, and the next run starts anew.
    if grep -q 'No space left on device' $log; then
        fail "the disk is full: .venv needs about 3 GB in $(pwd). Free some space and run make again."
    fi
    [ "$1" -lt 128 ] || fail "pip was killed (status $1), perhaps for want of memory. Run make again."
    rm -f $venv/.installing
    if grep -Eq 'NewConnectionError|NameResolution|ConnectTimeout|ReadTimeout|Connection(Reset|Refused)?Error|ProxyError|SSLError|Max retries exceeded|Network is unreachable|Temporary failure in name resolution' $log; then
        fail "pip can't reach its package index: no network, or a proxy or certificate that pip does not know." \
            "Packages are fetched the first time only. \`.venv/bin/pip config list\` shows what pip uses, $log the whole output."
    fi
    if grep -Eiq "command '[^']*(cc|c\+\+|clang)[^']*' failed|unable to execute|Microsoft Visual C|No such file or directory: '[^']*(cc|c\+\+)'|No CMAKE_C(XX)?_COMPILER|compiler.* not found" $log; then
        fail "a package has no wheel for $($venv/bin/python --version) on $(uname -sm) and must be compiled, and there is no working C++ compiler." \
            "Install one (\`apt install build-essential python3-dev\`, \`xcode-select --install\`). With Python 3.11 to 3.13 on x86-64 Linux nothing has to be compiled."
    fi
    if grep -q 'ResolutionImpossible\|No matching distribution' $log; then
        fail "a version in constraints.txt can't be had for $($venv/bin/python --version) on $(uname -sm):" \
            "$(grep -E '\(constraint\)|No matching distribution' $log | sed 's/^ *//' | tail -n 1). The whole output is in $log."
    fi
    fail "pip failed: $(grep -E '^(ERROR|error|Could not)' $log | tail -n 1)" "The whole output is in $log."
}

say "installing about 90 packages, 2 GB unpacked, those that are not there yet: 1 to 5 minutes the first time"
# The build tool comes first and builds without isolation, so that constraints.txt pins it too; then pip needs no
# network at all when everything is there already.
install 'setuptools>=77'
install --use-pep517 --no-build-isolation --editable '.[dev]'
# One question that has an answer, one that has none, and one about a model with branches: together they use all of it.
# Meanwhile one of each format of other planners' profiles, whose searches share nothing with it.
say "compiling the planner's searches: about 30 seconds"
(
    cd tests/data/published
    for question in 'pipedream/alexnet.graph.txt --format pipedream --devices 2 --bytes-per-second 1e9' \
        'piper/bert32a100.json --format piper --devices 2 --memory-gib 64 --micro-batches 8 --bytes-per-second 1e9' \
        'dnn-partitioning/OperatorGraphs/bert_l-3_inference.json --format dnn-partitioning'; do
        ../../../$venv/bin/partita plan $question >/dev/null 2>&1 || true
    done
) &
formats=$!
for question in 'gpt3-tiny --memory-gib 40' 'gpt3-tiny --memory-gib 0.5' 'multimodal-tiny --fix pp=4'; do
    $venv/bin/partita plan $question --cluster 4xa100-40gb --global-batch 8 --target partita >/dev/null 2>&1 || true
done
wait $formats
printf '%s\n' "$identity" >$venv/.installed
rm -f $venv/.installing
say ".venv is ready"
