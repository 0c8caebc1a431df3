echo 42 > answer.txt
echo noise > other.txt
