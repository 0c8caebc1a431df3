"""The viewer's index of large rollout files: tables, searches and fingerprints."""
