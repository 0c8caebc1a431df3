"""Files and text: JSON Lines, locked files, strict JSON, S3, search paths, terminal output."""
