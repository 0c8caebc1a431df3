#!/bin/sh
# Prints the path of a Python of at least the version MAJOR MINOR: on PATH, installed by pyenv, or downloaded by uv.
#     sh requirements/find_python.sh 3 12
major=$1 minor=$2
suits() { "$1" -c "import ensurepip, sys; sys.exit(sys.version_info < ($major, $minor))" 2>/dev/null; }
for candidate in python3 python$major.$minor python$major.$((minor + 1)); do
    path=$(command -v "$candidate") && suits "$path" && echo "$path" && exit 0
done
for path in "${PYENV_ROOT:-$HOME/.pyenv}"/versions/$major.*/bin/python; do
    suits "$path" && echo "$path" && exit 0
done
if command -v uv >/dev/null 2>&1; then
    uv python install -q "$major.$minor" && uv python find "$major.$minor" && exit 0
fi
echo "No Python $major.$minor or newer on PATH or among pyenv's, and uv could not install one. \
Install Python $major.$minor, or uv (pip install uv), and run make again." >&2
exit 1
