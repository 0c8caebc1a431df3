#!/bin/bash
if [ "$(cat /app/code.txt)" = 7291 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
