echo alpha > words.txt
