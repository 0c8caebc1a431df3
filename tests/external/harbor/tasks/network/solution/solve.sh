grep : /proc/net/dev | tr -d ' ' | cut -d: -f1 > interfaces.txt
