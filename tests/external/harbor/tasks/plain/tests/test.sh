#!/bin/bash
if [ "$(cat /app/sorted.txt)" = "$(seq 20 -1 1)" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
