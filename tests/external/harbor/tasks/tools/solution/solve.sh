echo 7291 > code.txt
