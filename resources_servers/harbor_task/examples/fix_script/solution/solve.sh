#!/bin/bash
cat > /app/backup.sh <<'END'
#!/bin/bash
mkdir -p "$2"
cp -- "$1"/* "$2"
END
