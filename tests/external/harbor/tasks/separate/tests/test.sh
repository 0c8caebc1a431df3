#!/bin/bash
# Only what the task declares is here: nothing else that the model wrote.
reward=0
[ "$(cat /app/answer.txt)" = "$EXPECTED" ] && [ -s /logs/artifacts/when ] && [ "$(ls /app)" = answer.txt ] && reward=1
echo $reward > /logs/verifier/reward.txt
