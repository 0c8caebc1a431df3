#!/bin/bash
if [ "$(cat /app/interfaces.txt)" = lo ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
