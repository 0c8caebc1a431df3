#!/bin/bash
from=$(mktemp -d)
to=$(mktemp -d)/new/folder
echo one > "$from/plain.txt"
echo two > "$from/with a space.txt"
bash /app/backup.sh "$from" "$to"
if diff -r "$from" "$to"; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
