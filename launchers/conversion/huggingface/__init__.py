"""The conversion itself, with torch and transformers (extra `convert`)."""
