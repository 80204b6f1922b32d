#!/bin/sh
# Prepares the make targets: `bootstrap.sh venv` fills .venv from requirements/dev.lock, `bootstrap.sh java` checks Java,
# `bootstrap.sh site-venv` fills .venv-docs from requirements/docs.lock, `bootstrap.sh dbt-venv` .venv-dbt from
# requirements/dbt.lock, `bootstrap.sh lock` writes the locks. A second run costs nothing unless the lock or
# pyproject.toml changed.
#
#   PYTHON=/path/to/python3.12 make venv     chooses the Python
#   UV=no make venv                          uses venv and pip even where uv is installed
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
cd "$root"

venv=.venv
lock=requirements/dev.lock
stamp=$venv/.installed
log=$venv/install.log
min_java=17

# Without .pyc files every start compiles again: Airflow then starts three times slower.
unset PYTHONDONTWRITEBYTECODE

say() { printf '%s\n' "$*"; }

die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# ---- Python ----------------------------------------------------------------------------------------------------

fits='import sys; v = sys.version_info; print("%d.%d.%d" % v[:3]); sys.exit(not (3, 11) <= v[:2] <= (3, 13))'

# Sets $python to the first Python that fits; if none does, $seen to those found. $1: `pip` if venv must work, too.
find_python() {
    tool=$1 python='' seen=''
    set -- python3.13 python3.12 python3.11 python3 python
    if [ -n "${PYTHON:-}" ]; then set -- "$PYTHON"; fi
    for name in "$@"; do
        path=$(command -v "$name" 2>/dev/null) || continue
        # not the environment that is about to be replaced
        case $path in "$root/$venv"/*) continue ;; esac
        # a name on PATH may not run (shims)
        version=$("$path" -c "$fits" 2>/dev/null) && fit=yes || fit=no
        [ -n "$version" ] || continue
        if [ $fit = no ]; then
            seen="$seen, $path is $version"
        elif [ "$tool" = pip ] && ! "$path" -c 'import ensurepip, venv' 2>/dev/null; then
            seen="$seen, $path is $version without venv"
        else
            python=$path
            return 0
        fi
    done
    return 1
}

no_python() {
    found=${seen#, }
    [ -z "${PYTHON:-}" ] || found=${found:-PYTHON=$PYTHON does not run}
    die "Python 3.11, 3.12 or 3.13 with venv is needed (found: ${found:-none}). Install it:" \
        "Debian/Ubuntu: apt install python3 python3-venv; Fedora: dnf install python3.13;" \
        "macOS: brew install python@3.13; or name one: PYTHON=/path/to/python3.12 make venv"
}

# ---- Java ------------------------------------------------------------------------------------------------------

# The major version of a java binary: "17.0.15", "21-ea" and the old "1.8.0_402"; empty if it does not run.
java_major() {
    "$1" -version 2>&1 | sed -n 's/.* version "\(1\.\)\{0,1\}\([0-9][0-9]*\).*/\2/p' | head -n 1
}

# Spark prefers JAVA_HOME to PATH, so a wrong JAVA_HOME is an error even where PATH has a good Java.
check_java() {
    install="Install it: Debian/Ubuntu: apt install openjdk-17-jre-headless; Fedora: dnf install java-21-openjdk-headless;"
    install="$install macOS: brew install openjdk@17 && export JAVA_HOME=\$(brew --prefix openjdk@17)"
    if [ -n "${JAVA_HOME:-}" ]; then
        java=$JAVA_HOME/bin/java
        what="JAVA_HOME=$JAVA_HOME"
        [ -x "$java" ] || die "Java $min_java or newer is needed and $what has no bin/java. Correct or unset it. $install"
    else
        java=$(command -v java 2>/dev/null) || die "Java $min_java or newer is needed and there is none on PATH. $install"
        what="$java"
    fi
    major=$(java_major "$java")
    [ -n "$major" ] || die "Java $min_java or newer is needed and $what does not run. $install"
    [ "$major" -ge "$min_java" ] || die "Java $min_java or newer is needed and $what is Java $major. $install"
}

# ---- .venv -----------------------------------------------------------------------------------------------------

have_uv() { [ "${UV:-yes}" != no ] && command -v uv >/dev/null 2>&1; }

last_line() { tail -n 1 "$log" | tr -d '\r' | sed 's/^ *//'; }

# Runs a long command with its output in the log. Meanwhile shows the time, and on a terminal the last line of the log.
run_logged() {
    label=$1
    shift
    "$@" >>"$log" 2>&1 </dev/null &
    pid=$!
    trap 'kill "$pid" 2>/dev/null; exit 130' INT TERM
    started=$(date +%s) shown=0
    while kill -0 "$pid" 2>/dev/null; do
        sleep 1
        spent=$(($(date +%s) - started))
        if [ -t 1 ]; then
            printf '\r\033[K  %s: %d s  %.60s' "$label" "$spent" "$(last_line)"
        elif [ $((spent - shown)) -ge 15 ]; then
            shown=$spent
            printf '  %s: %d s  %.60s\n' "$label" "$spent" "$(last_line)"
        fi
    done
    [ ! -t 1 ] || printf '\r\033[K'
    trap - INT TERM
    if ! wait "$pid"; then
        tail -n 20 "$log" >&2
        die "$label failed, see above and $venv/install.log. If it was the network: the same command goes on from here"
    fi
}

make_venv() {
    rm -rf "$venv"
    if have_uv; then
        # if no Python fits, uv installs one
        find_python uv || python='>=3.11,<3.14'
        mkdir -p "$venv"
        run_logged "making $venv" uv venv --quiet --allow-existing --python "$python" "$venv"
    else
        find_python pip || no_python
        mkdir -p "$venv"
        run_logged "making $venv" "$python" -m venv "$venv"
    fi
}

install() {
    what=$1
    shift
    if have_uv; then
        run_logged "$what" uv pip install --python "$venv/bin/python" --compile-bytecode "$@"
    else
        set -- install --disable-pip-version-check --no-input --progress-bar off "$@"
        run_logged "$what" "$venv/bin/python" -m pip "$@"
    fi
}

# Does $venv work? Not after the folder was moved, because its scripts contain absolute paths.
works() {
    "$venv/bin/python" -c "$fits" >/dev/null 2>&1 && grep -qF "$root/$venv" "$venv/bin/activate" 2>/dev/null
}

# Can packages be added to it? An environment that uv made has no pip yet.
fillable() {
    have_uv || "$venv/bin/python" -c 'import pip' 2>/dev/null || "$venv/bin/python" -m ensurepip >/dev/null 2>&1
}

ensure_venv() {
    packages="packages $(cksum <"$lock")"
    project="project $(cksum <pyproject.toml)"
    done=$(cat "$stamp" 2>/dev/null || true)
    remake=no
    if works; then
        [ "$done" != "$packages
$project" ] || return 0
        fillable || remake=yes
    else
        remake=yes
    fi
    if [ $remake = yes ]; then
        make_venv
        done=''
    fi
    rm -f "$stamp"
    case $done in "$packages"*) ;; *)
        say "Installing $(grep -c '^[a-z].*==' "$lock") packages into $venv; once, about 1 GB (Spark, Airflow, Arrow)"
        install "installing packages" -r "$lock"
        ;;
    esac
    # The build backend is in the lock: building the package makes no second, unlocked environment.
    install "installing airflow-trident" --no-deps --no-build-isolation --editable .
    printf '%s\n%s\n' "$packages" "$project" >"$stamp"
}

# The site's generator and dbt have environments of their own, so their requirements do not influence the versions in
# .venv. $1: the folder; $2: the lock; $3: its size in MB.
ensure_own_venv() {
    venv=$1 lock=$2
    stamp=$venv/.installed log=$venv/install.log
    packages="packages $(cksum <"$lock")"
    if works && [ "$(cat "$stamp" 2>/dev/null)" = "$packages" ]; then return 0; fi
    make_venv
    say "Installing $(grep -c '^[a-z].*==' "$lock") packages into $venv; once, about $3 MB"
    install "installing packages" -r "$lock"
    printf '%s\n' "$packages" >"$stamp"
}

# ---- lock ------------------------------------------------------------------------------------------------------

# $1: the purpose, for the head of the file; $2: the lock; the rest: arguments of uv.
write_lock() {
    what=$1 lock=$2
    shift 2
    command -v uv >/dev/null 2>&1 || die "uv is needed to write the lock. Install it: pip install uv"
    new=$lock.new
    # Starts from the present pins, so only necessary changes are made; --upgrade takes the newest of everything.
    cp "$lock" "$new"
    uv pip compile --quiet --universal --python-version 3.11 --no-header --no-emit-index-url -o "$new" "$@"
    {
        say "# Written by \`make lock\` from $what; do not edit."
        say "# Exact versions for development and tests on Python 3.11 to 3.13; installs with uv and with pip alike."
        cat "$new"
    } >"$lock"
    rm -f "$new"
    say "$lock: $(grep -c '^[a-z].*==' "$lock") pins"
}

write_locks() {
    write_lock "pyproject.toml and requirements/dev.in" requirements/dev.lock \
        "$@" --all-extras pyproject.toml requirements/dev.in
    write_lock "requirements/docs.in" requirements/docs.lock "$@" requirements/docs.in
    write_lock "requirements/dbt.in" requirements/dbt.lock "$@" requirements/dbt.in
}

case ${1:-} in
    venv) ensure_venv ;;
    java) check_java ;;
    site-venv) ensure_own_venv .venv-docs requirements/docs.lock 20 ;;
    dbt-venv) ensure_own_venv .venv-dbt requirements/dbt.lock 100 ;;
    lock) shift && write_locks "$@" ;;
    *) die "usage: tools/bootstrap.sh venv|java|site-venv|dbt-venv|lock" ;;
esac
