"""Files and text: JSON Lines, locked files, exact JSON, S3, where files are looked for."""
