sort -rn numbers.txt > sorted.txt
