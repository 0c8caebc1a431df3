#!/bin/bash
cd /app/texts
for file in *.txt; do
    echo "$file $(wc -w < "$file")"
done | sort -k2,2nr > /app/counts.txt
