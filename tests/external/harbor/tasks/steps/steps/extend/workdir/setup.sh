echo "$(cat name.txt)" > more.txt
