cat more.txt >> words.txt
